package conformance

import (
	"slices"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/retry"
)

// effects returns the ids of the messages in the order in which they took effect.
func (w *world) effects() (ids []string) {
	w.Helper()
	return kit.Lines(w, w, `SELECT message_id FROM effects ORDER BY n`)
}

func effectsInOrder(w *world) {
	w.Helper()
	effectsOnce(w)
	if got := w.effects(); !slices.Equal(got, messages) {
		w.Errorf("the messages took effect in the order %v", got)
	}
}

// The process is killed while it handles three messages of one key. The first message
// fails once, so it is postponed, and the other messages wait for it. When the row of a
// message is removed, the next message becomes the first of its key. Each message takes
// effect once, in the order of the key.
func TestKilledAtEveryStepOfKeyOrder(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		points := of(db, "park", before, after, sent, done)
		points = append(points, of(db, "ack", before, after)...)
		points = append(points, of(db, "claim", before, sent, done)...)
		points = append(points, of(db, "postpone", before, after, sent, done)...)
		points = append(points, of(db, "effect", after)...)
		points = append(points, of(db, "inbox", sent, done)...)
		points = append(points, of(db, "resolve", before, after, sent, done)...)
		points = append(points, of(db, "promote", before, after)...)
		steps(t, db, life{mode: mode{KeyOrder: retry.BlockWhileRetried}, Transport: "queue", FailsOnce: true}, nil, points, effectsInOrder)
	})
}

// The process is killed while it quarantines a message that does not block its key. Every message
// is in quarantine once, in order.
func TestKilledAtEveryStepOfAFailureInKeyOrder(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		points := of(db, "quarantine", before, after, sent, done)
		points = append(points, of(db, "promote", before, after)...)
		steps(t, db, life{mode: mode{KeyOrder: retry.BlockWhileRetried}, Transport: "queue", Fails: true}, nil, points, quarantinedOnce)
	})
}

// The process is killed while it quarantines a message that blocks its key. No process handles a
// later message of the key until the message is replayed. Then all messages of the key are handled,
// in order.
func TestKilledWhileAKeyStaysBlocked(t *testing.T) {
	everyDatabase(t, func(t *testing.T, db string) {
		for i, at := range append(of(db, "quarantine", before, after, sent, done), of(db, "ack", after)...) {
			t.Run(at.Of+" "+at.When, func(t *testing.T) {
				if i > 0 || db == "sqlite" {
					kit.Long(t)
				}
				t.Parallel()
				database := kit.SQLite
				if db == "postgres" {
					database = kit.Postgres
				}
				w := newWorld(t, database(t))
				l := life{
					mode: mode{KeyOrder: retry.BlockWhileQuarantined}, Dialect: w.Dialect, DSN: w.DSN, Transport: "queue", Fails: true, Dies: at,
				}
				w.put(l, messages...)
				if status := begin(t, l).end(t); !status.Signaled() {
					t.Fatalf("the process was not killed, it ended with %v", status)
				}
				l.Dies = point{}
				held := func() bool {
					return w.count(`queue WHERE acked = 0`) == 0 && w.count(`once_parked WHERE state = 'held'`) == len(messages)-1 &&
						w.count(`once_parked WHERE state = 'quarantined'`) == 1
				}
				p := begin(t, l)
				kit.Eventually(t, patience, "the key is held", held)
				p.stop(t)

				l.Fails = false
				p = begin(t, l)
				defer p.stop(t)
				kit.Eventually(t, patience, "the next process keeps the key held", func() bool { return held() })
				entries, err := quarantine.New(w.DB, operate.Config{Schema: w.parked.Dialect().Config(), ReplayToAbsent: true})
				kit.OK(t, err)
				page, err := entries.List(t.Context(), operate.Filter{})
				if err != nil || len(page.Rows) != 1 || page.Rows[0].MessageID != messages[0] {
					t.Fatalf("%v, entries %+v", err, page.Rows)
				}
				kit.OK(t, entries.Replay(t.Context(), operate.Act{Actor: "test"}, page.Rows[0].ID))
				kit.Eventually(t, patience, "all messages are handled", func() bool { return w.settled() })
				w.checkOnce(messages...)
				if got := w.effects(); !slices.Equal(got, messages) {
					t.Errorf("the messages took effect in the order %v", got)
				}
			})
		}
	})
}
