package conformance

import (
	"slices"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

// The process is killed while messages arrive in the wrong order. Two are parked
// because they are early. The last one has the first version, and its transaction makes
// the next version due. Then the others follow. Each takes effect once, in the order of
// versions.
func TestKilledAtEveryStepOfVersions(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		points := of(db, "park", before, after, sent, done)
		points = append(points, of(db, "ack", before, after)...)
		points = append(points, of(db, "first", before, after, sent, done)...)
		points = append(points, of(db, "version", before, after, sent, done)...)
		points = append(points, of(db, "wake", before, after)...)
		points = append(points, of(db, "effect", after)...)
		points = append(points, of(db, "resolve", before, sent, done)...)
		steps(t, db, life{mode: mode{Versions: "all"}, Transport: "queue"}, nil, points, inVersions)
	})
}

// The process is killed while it checks a parked early message again, and parks it
// again.
func TestKilledAtEveryStepOfARecheck(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		for _, at := range of(db, "early", before, after, sent, done) {
			t.Run(at.When, func(t *testing.T) {
				t.Parallel()
				database := testkit.SQLite
				if db == "postgres" {
					database = testkit.Postgres
				}
				w := newWorld(t, database(t))
				l := life{mode: mode{Versions: "all"}, Dialect: w.Dialect, DSN: w.DSN, Transport: "local", Dies: at}
				w.put(l, messages[:2]...)
				if status := begin(t, l).end(t); !status.Signaled() {
					t.Fatalf("the process was not killed, it ended with %v", status)
				}
				w.put(l, messages[2])
				l.Dies = point{}
				last := begin(t, l)
				testkit.Eventually(t, patience, "everything is settled", w.settled)
				last.stop(t)
				inVersions(w)
			})
		}
	})
}

func inVersions(w *world) {
	w.Helper()
	effectsOnce(w)
	if got := w.effects(); !slices.Equal(got, []string{"m3", "m1", "m2"}) {
		w.Errorf("they took effect in the order %v", got)
	}
}
