package quarantine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// To count the outcomes of a replay, the quarantine reads the entries of the replay. So
// dedup's sweep must not remove these entries before the replay has finished.
func TestTrap36RetentionKeepsEntriesOfUnfinishedReplay(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.Config})
		kit.OK(t, err)
		sweep := func(want int64) {
			t.Helper()
			longAgo := b.parked.Dialect().SQL(`UPDATE {parked} SET finished_at = {after $1} WHERE state = 'resolved'`)
			kit.Exec(t, db, longAgo, -(365 * 24 * time.Hour).Milliseconds())
			if n, err := inbox.Sweep(t.Context()); err != nil || n != want {
				t.Fatalf("%d rows were removed, want %d, %v", n, want, err)
			}
		}
		replayIs := func(r operate.Replay, want string) {
			t.Helper()
			kit.Eventually(t, 20*time.Second, want, func() bool { // also counts messages that the replay had given back before it stopped
				now, err := b.store.ReplayOf(t.Context(), r.ID)
				return err == nil && counts(now.Report) == want
			})
		}

		b.fill("payments", 8)
		c := &counted{fail: func(id string) bool { return id == "payments-0003" }}
		b.consume("payments", c.handle)
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{Canary: 5})
		if !errors.Is(err, operate.ErrReplayStopped) {
			t.Fatal(err)
		}
		const stopped = "stopped: 5 of 8 replayed, 4 resolved, 1 failed, 0 waiting"
		replayIs(r, stopped)
		sweep(0)
		replayIs(r, stopped)

		r, err = b.store.Resume(t.Context(), act, r.ID, nil)
		kit.OK(t, err)
		const finished = "finished: 8 of 8 replayed, 7 resolved, 1 failed, 0 waiting"
		replayIs(r, finished)
		sweep(7)
		replayIs(r, finished)
	})
}
