package dedup_test

import (
	"context"
	"testing"
	"time"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
)

// While sweeps fail, Run logs one error. When they work again, it logs this once.
func TestFailingSweepsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		t.Parallel()
		logs := &testkit.Logs{}
		b := newBench(t, db, func(c *dedup.Config) { c.SweepInterval, c.Logger = 10*time.Millisecond, logs })
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.inbox.Run(ctx) }()
		const failed, works = "Sweep of the inbox failed", "Sweep of the inbox works again"
		for times := 1; times <= 2; times++ {
			b.exec(`ALTER TABLE once_inbox RENAME TO away`)
			testkit.Eventually(t, time.Minute, "it fails", func() bool { return logs.Count(failed) == times })
			for range 5 { // sweeps fail in the meantime
				if _, err := b.inbox.Sweep(t.Context()); err == nil {
					t.Error("a sweep without its table does not fail")
				}
			}
			b.exec(`ALTER TABLE away RENAME TO once_inbox`)
			testkit.Eventually(t, time.Minute, "it works", func() bool { return logs.Count(works) == times })
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if f, w := logs.Count(failed), logs.Count(works); f != 2 || w != 2 {
			t.Errorf("%d failures and %d recoveries are logged: %v", f, w, logs.Lines())
		}
	})
}
