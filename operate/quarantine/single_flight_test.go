package quarantine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// begin begins a replay of a consumer that is not running, so that the replay keeps
// waiting.
func (b *bench) begin(ctx context.Context, consumer string) (first operate.Report, ended <-chan error) {
	b.Helper()
	started, failed := make(chan operate.Report, 1), make(chan error, 1)
	go func() {
		_, err := b.store.ReplayMatching(ctx, act, operate.Filter{Consumer: consumer}, operate.Plan{
			Canary: 1,
			Progress: func(r operate.Report) {
				select {
				case started <- r:
				default:
				}
			},
		})
		failed <- err
	}()
	select {
	case first = <-started:
	case err := <-failed:
		b.Fatal(err)
	}
	return first, failed
}

// If two replays of a consumer ran at the same time, each would count outcomes of the
// other, so the second one is refused.
func TestTrap52ConsumerHasOneReplayAtATime(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		// a long lease, so that a slow test does not lose it
		b := newBench(t, db, func(c *operate.Config) { c.ReplayLease = 10 * time.Minute })
		b.fill("payments", 2)
		b.fill("inventory", 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, ended := b.begin(ctx, "payments")
		for _, f := range []operate.Filter{{Consumer: "payments"}, {All: true}, {MessageID: "x"}} {
			_, err := b.store.ReplayMatching(t.Context(), act, f, operate.Plan{})
			if !errors.Is(err, operate.ErrReplayRunning) || !strings.Contains(err.Error(), fmt.Sprint(first.ID)) {
				t.Errorf("%+v: %v", f, err)
			}
		}
		soon, done := context.WithTimeout(t.Context(), time.Minute)
		if _, err := b.store.Resume(soon, act, first.ID, nil); !errors.Is(err, operate.ErrReplayRunning) {
			t.Errorf("resuming one that runs: %v", err)
		}
		done()
		// The replay of another consumer is not affected.
		b.consume("inventory", (&counted{}).handle)
		if _, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "inventory"}, operate.Plan{}); err != nil {
			t.Errorf("another consumer: %v", err)
		}
		b.eventually("it waits for its canary", func() bool {
			r, err := b.store.ReplayOf(t.Context(), first.ID)
			return err == nil && r.Changed == 1
		})
		cancel()
		b.paused(first.ID, ended)
	})
}

// paused waits for the end of a replay of two messages. The context of the replay was
// cancelled before the first message was handled. It checks that the replay was paused
// and can be resumed.
func (b *bench) paused(replay int64, ended <-chan error) {
	b.Helper()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		b.Fatalf("cancelled: %v", err)
	}
	r, err := b.store.ReplayOf(b.Context(), replay)
	if err != nil || counts(r.Report) != "paused: 1 of 2 replayed, 0 resolved, 0 failed, 1 waiting" {
		b.Fatalf("%v, %s", err, counts(r.Report))
	}
	c := &counted{}
	b.consume("payments", c.handle)
	if r, err = b.store.Resume(b.Context(), act, replay, nil); err != nil || r.Resolved != 2 || c.total() != 2 {
		b.Fatalf("%v, %s, %d calls", err, counts(r.Report), c.total())
	}
}

func (b *bench) eventually(what string, cond func() bool) {
	b.Helper()
	kit.Eventually(b.T, time.Minute, what, cond)
}

// A replay continues after a step that took longer than the lease of the replay.
func TestTrap52ReplayOutlivesItsLease(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *operate.Config) { c.ReplayLease = time.Second })
		b.fill("payments", 2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, ended := b.begin(ctx, "payments")
		kit.Exec(t, db, `CREATE TABLE began AS SELECT lease_until AS at FROM once_replays`)
		later := `at + interval '2 seconds'`
		if db.Dialect == "sqlite" {
			later = `at + 2000`
		}
		b.eventually("it has its lease for two more of them", func() bool {
			return b.Number(`SELECT COUNT(*) FROM once_replays, began WHERE replayed = 1 AND lease_until > `+later) == 1
		})
		cancel()
		b.paused(first.ID, ended)
	})
}

// If many replays begin at the same time, only one of them succeeds.
func TestTrap52OneOfSimultaneousReplaysBegins(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fill("payments", 1)
		ctx, cancel := context.WithCancel(t.Context())
		var first, begun, refused atomic.Int64
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				_, err := b.store.ReplayMatching(ctx, act, operate.Filter{Consumer: "payments"},
					operate.Plan{Progress: func(r operate.Report) {
						if !first.CompareAndSwap(0, r.ID) && first.Load() != r.ID {
							cancel() // nothing handles the messages, so no replay would end
						}
					}})
				switch {
				case errors.Is(err, context.Canceled):
					begun.Add(1)
				case errors.Is(err, operate.ErrReplayRunning):
					if refused.Add(1) == 5 {
						cancel()
					}
				default:
					t.Errorf("error %v", err)
				}
			})
		}
		all.Wait()
		cancel()
		if begun.Load() != 1 || refused.Load() != 5 {
			t.Fatalf("%d began, %d were refused", begun.Load(), refused.Load())
		}
	})
}

// A replay that begins waits for the transaction that inserts another replay.
func TestTrap52NewReplayWaitsForUncommittedOne(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil) // SQLite has only one writer at a time
	b.fill("payments", 1)
	tx := kit.Begin(t, b)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `INSERT INTO once_replays
		(consumer, filter, plan, actor, why, state, total, until_id, token, lease_until)
		VALUES ('payments', '{}', '{}', 'bob', '', 'running', 1, 1, 'his', now() + interval '1 hour')`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	var begun atomic.Bool
	go func() {
		_, err := b.store.ReplayMatching(ctx, act, operate.Filter{Consumer: "payments"},
			operate.Plan{Progress: func(operate.Report) { begun.Store(true) }})
		ended <- err
	}()
	kit.Eventually(t, 20*time.Second, "it waits or begins", func() bool {
		return begun.Load() || b.Number(`SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND relation = 'once_replays'::regclass`) > 0
	})
	if begun.Load() {
		t.Fatal("it began beside the other one")
	}
	kit.OK(t, tx.Commit())
	if err := <-ended; !errors.Is(err, operate.ErrReplayRunning) {
		t.Fatalf("error %v", err)
	}
}

// Counting millions of entries does not delay a replay of another consumer.
func TestCountingEntriesDelaysNoOtherReplay(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	tx := kit.Begin(t, b)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `LOCK TABLE once_parked`)
	ended := make(chan error, 1)
	go func() {
		_, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{})
		ended <- err
	}()
	b.eventually("it counts", func() bool {
		return b.Number(`SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND relation = 'once_parked'::regclass`) == 1
	})
	if n := b.Number(`SELECT COUNT(*) FROM pg_locks WHERE relation = 'once_replays'::regclass AND mode <> 'AccessShareLock'`); n != 0 {
		t.Error("nobody can renew a lease meanwhile")
	}
	kit.OK(t, tx.Rollback())
	kit.OK(t, <-ended)
}

// A replay takes its lease again after the lease has ended, unless another replay has
// begun. In that case the first replay ends, and can be resumed later.
func TestTrap52ReplayEndsWithItsLease(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		b.fill("payments", 2)
		past := "now() - interval '1 second'"
		if db.Dialect == "sqlite" {
			past = "0"
		}
		lapse := func() {
			kit.Check(t, kit.Err(db.ExecContext(t.Context(), `UPDATE once_replays SET lease_until = `+past)))
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		looks, second := 0, make(chan error, 1)
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{
			Canary: 1,
			Progress: func(r operate.Report) {
				if r.Changed != 1 {
					return
				}
				switch looks++; looks {
				case 1:
					lapse()
				case 2: // the replay continues
					lapse()
					b.quarantine("payments", "other")
					begun := make(chan struct{}, 100)
					go func() {
						_, err := b.store.ReplayMatching(ctx, act, operate.Filter{Consumer: "payments", MessageID: "other"},
							operate.Plan{Progress: func(operate.Report) { begun <- struct{}{}; <-ctx.Done() }})
						second <- err
					}()
					<-begun
				}
			},
		})
		if !errors.Is(err, operate.ErrReplayLost) || looks != 2 || r.Changed != 1 {
			t.Fatalf("%v after %d looks: %s", err, looks, counts(r.Report))
		}
		all, err := b.store.Replays(t.Context(), 0)
		if err != nil || len(all) != 2 || all[1].State != operate.ReplayAbandoned || all[1].Changed != 1 {
			t.Fatalf("%v, %+v", err, all)
		}
		if _, err := b.store.Resume(t.Context(), act, all[1].ID, nil); !errors.Is(err, operate.ErrReplayRunning) {
			t.Errorf("resumed beside the other one: %v", err)
		}
		cancel()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Errorf("the other one: %v", err)
		}
		c := &counted{}
		b.consume("payments", func(msg *message.Message) error {
			if msg.UUID == "other" {
				return nil
			}
			return c.handle(msg)
		})
		if r, err := b.store.Resume(t.Context(), act, all[1].ID, nil); err != nil || r.Resolved != 2 || c.total() != 2 {
			t.Fatalf("%v, %s, %d calls", err, counts(r.Report), c.total())
		}
	})
}
