package conformance

import (
	"slices"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

// The process is killed while messages arrive in the wrong order. Two messages are parked because
// they are early. The last message has the first version, and its transaction makes the next
// version due. Then the early messages are handled. Each message takes effect once, in the order of
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

// The process is killed while it finds that a parked message is early, and parks the
// message again. Each message takes effect once, in the order of versions.
func TestKilledAtEveryStepOfARecheck(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		for i, at := range of(db, "early", before, after, sent, done) {
			t.Run(at.When, func(t *testing.T) {
				if i > 0 {
					kit.Long(t)
				}
				t.Parallel()
				database := kit.SQLite
				if db == "postgres" {
					database = kit.Postgres
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
				kit.Eventually(t, patience, "everything is settled", w.settled)
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
		w.Errorf("the messages took effect in the order %v", got)
	}
}
