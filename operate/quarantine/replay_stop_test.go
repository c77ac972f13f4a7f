package quarantine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

var bob = operate.Act{Actor: "bob", Why: "the gateway is down again"}

// another returns a second Quarantine for the same database, as another process would
// have it.
func (b *bench) another() *quarantine.Entries {
	b.Helper()
	other, err := quarantine.New(b.DB, operate.Config{
		Schema: b.Config, ReplayToAbsent: true, ReplayLease: time.Second,
	})
	kit.OK(b, err)
	return other
}

func TestAnotherProcessStopsAReplay(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fill("payments", 8)
		c := &counted{}
		b.consume("payments", c.handle)
		var atStop operate.Replay
		r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{
			Rate: 2, Progress: func(r operate.Report) {
				if r.Changed == 0 || atStop.ID != 0 {
					return
				}
				var err error
				if atStop, err = b.another().StopReplay(t.Context(), bob, r.ID); err != nil {
					t.Error(err)
				}
			},
		})
		if !errors.Is(err, operate.ErrReplayStopped) || !strings.Contains(err.Error(), "by bob: the gateway is down again") {
			t.Fatalf("error %v", err)
		}
		if r.State != operate.ReplayStopped || r.StopReason != "by bob: the gateway is down again" || r.EndedAt.IsZero() ||
			r.Changed != atStop.Changed || atStop.State != operate.ReplayStopped {
			t.Fatalf("%s after %s; %+v", counts(r.Report), counts(atStop.Report), r)
		}
		if n := b.Number(`SELECT COUNT(*) FROM once_audit
			WHERE action = 'stop' AND actor = 'bob' AND consumer = 'payments' AND replay_id = 1`); n != 1 {
			t.Errorf("%d lines of audit of the stop", n)
		}

		// The replay stays stopped, and can be resumed.
		if again, err := b.store.StopReplay(t.Context(), act, r.ID); err != nil || again.StopReason != r.StopReason {
			t.Errorf("%v, %+v", err, again)
		}
		b.Exec(`UPDATE once_replays SET plan = '{"window":100}'`) // without the rate
		r, err = b.another().Resume(t.Context(), act, r.ID, nil)
		if err != nil || counts(r.Report) != "finished: 8 of 8 replayed, 8 resolved, 0 failed, 0 waiting" || c.total() != 8 {
			t.Fatalf("%v, %s", err, counts(r.Report))
		}
		if _, err := b.store.StopReplay(t.Context(), act, r.ID); !errors.Is(err, operate.ErrReplayFinished) {
			t.Errorf("stop of a finished one: %v", err)
		}
		if _, err := b.store.StopReplay(t.Context(), act, 4711); !errors.Is(err, operate.ErrReplayNotFound) {
			t.Errorf("stop of none: %v", err)
		}
		if _, err := b.store.StopReplay(t.Context(), operate.Act{}, r.ID); err == nil || !strings.Contains(err.Error(), "Actor is empty") {
			t.Errorf("stop by nobody: %v", err)
		}
	})
}

// The process that ran the replay has died. So no process notices the stop, but the
// replay is no longer abandoned.
func TestAbandonedReplayIsStopped(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		b.fill("payments", 3)
		for name, lease := range map[string]int{"its lease has ended": -1, "its lease runs": 1} {
			until := fmt.Sprintf(`now() + %d * interval '1 hour'`, lease)
			if db.Dialect == "sqlite" {
				until = fmt.Sprintf(`CAST(unixepoch('subsec') * 1000 AS INTEGER) + %d * 3600000`, lease)
			}
			b.Exec(`DELETE FROM once_replays`)
			b.Exec(`INSERT INTO once_replays (consumer, filter, plan, actor, why, state, total, until_id, token, lease_until)
				VALUES ('payments', '{"consumer":"payments"}', '{}', 'ann', '', 'running', 3, 3, 'gone', ` + until + `)`)
			id := int64(b.Number(`SELECT MAX(id) FROM once_replays`))
			r, err := b.store.StopReplay(t.Context(), bob, id)
			if err != nil || counts(r.Report) != "stopped: 0 of 3 replayed, 0 resolved, 0 failed, 0 waiting" {
				t.Fatalf("%s: %v, %s", name, err, counts(r.Report))
			}
		}
	})
}

// StopReplay is called while the replay ends. Both calls must return the same order of
// events: either the replay has finished, and StopReplay returns ErrReplayFinished, or
// StopReplay succeeds, and the replay returns ErrReplayStopped.
func TestStopAndEndAgree(t *testing.T) {
	kit.Long(t)
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.consume("payments", (&counted{}).handle)
		ends := map[string]int{}
		for i := range 10 {
			b.quarantine("payments", fmt.Sprintf("m-%d", i))
			stop := make(chan error, 1)
			asked := false
			r, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{
				Progress: func(r operate.Report) {
					if r.Resolved == 1 && !asked { // the next statement would end the replay
						asked = true
						go func() {
							_, err := b.another().StopReplay(t.Context(), bob, r.ID)
							stop <- err
						}()
					}
				},
			})
			stopErr := <-stop
			finished := err == nil && r.State == operate.ReplayFinished && errors.Is(stopErr, operate.ErrReplayFinished)
			stopped := errors.Is(err, operate.ErrReplayStopped) && r.State == operate.ReplayStopped && stopErr == nil
			if finished == stopped {
				t.Fatalf("%s: the replay says %v, and the stop %v", counts(r.Report), err, stopErr)
			}
			ends[r.State]++
		}
		t.Logf("ends: %v", ends)
	})
}

// The context of a replay ends before the replay has given an entry back. So no row of
// the audit log names an entry, and the row of the pause says who began the replay and why.
func TestInterruptedReplayIsInTheAuditLog(t *testing.T) {
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.fill("payments", 2)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		r, err := b.store.ReplayMatching(ctx, bob, operate.Filter{Consumer: "payments"}, operate.Plan{
			Progress: func(operate.Report) { cancel(errors.New("the service stops")) },
		})
		if !errors.Is(err, context.Canceled) || r.State != operate.ReplayPaused || r.Changed != 0 ||
			r.StopReason != "interrupted: the service stops" {
			t.Fatalf("%v, %+v", err, r)
		}
		if n := b.Number(`SELECT COUNT(*) FROM once_audit
			WHERE action = 'pause' AND actor = 'bob' AND consumer = 'payments' AND subject = 'replay:1' AND replay_id = 1
			  AND why = 'interrupted: the service stops; reason of the replay: the gateway is down again'`); n != 1 {
			t.Errorf("%d lines of audit of the pause", n)
		}
	})
}
