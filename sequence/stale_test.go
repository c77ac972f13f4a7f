package sequence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// Trap 79. The consumer has stopped waiting for version 2 and has applied version 3. When
// version 2 arrives, it is not acked as stale: by default it goes to quarantine.
func TestVersionThatArrivesAfterItsWindowIsQuarantinedByDefault(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		b.run(sequence.Config{Policy: sequence.HoldForGap, Window: 300 * time.Millisecond}, nil)
		b.publish("a1", "a3")
		b.settle()
		b.replay(b.quarantined(1)[0])
		if got := b.effects("a"); got != "a1 a3" {
			t.Fatalf("effects %s", got)
		}
		b.publish("a2")
		b.settle()
		if e := b.quarantined(1)[0]; e.MessageID != "a2" || e.Reason != poison.ReasonGap {
			t.Fatalf("entry %+v", e)
		}
		b.replay(b.quarantined(1)[0])
		b.quarantined(0)
		if got := b.effects("a"); got != "a1 a3 a2" {
			t.Errorf("effects %s", got)
		}
	})
}

// With IgnoreLate, a version that arrives after a higher version was applied without it
// has no effect, and does not go to quarantine.
func TestIgnoreLateAcksLateVersions(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		b.run(sequence.Config{
			Policy: sequence.HoldForGap, Window: 300 * time.Millisecond, AfterWindow: sequence.Apply, Late: sequence.IgnoreLate,
		}, nil)
		b.publish("a3")
		b.settle()
		b.publish("a2", "a4")
		b.settle()
		b.eventually("the next version is applied", func() bool { return b.effects("a") == "a3 a4" })
		b.end()
		if left := b.entries(""); len(left) != 0 || b.effects("a") != "a3 a4" {
			t.Errorf("effects %s, left %+v", b.effects("a"), left)
		}
	})
}

// OnStale handles a late version in the message's transaction. If OnStale fails, its
// writes are rolled back, and the attempt is repeated. OnStale is not called for a
// version that was already applied or merged.
func TestOnStaleMergesInTheTransaction(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]sequence.Config{
		"HoldForGap":  {Policy: sequence.HoldForGap, Window: 300 * time.Millisecond, AfterWindow: sequence.Apply},
		"IgnoreOlder": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
				b := newBench(t, db)
				gaps := make(chan sequence.Gap, 10)
				config := config
				config.OnStale = func(ctx context.Context, tx *sql.Tx, gap sequence.Gap, msg *message.Message) error {
					gaps <- gap
					err := effect(ctx, tx, msg.UUID+", merged")
					if len(gaps) == 1 {
						return errors.Join(errHandler, err)
					}
					return err
				}
				b.run(config, nil)
				b.publish("a3")
				b.settle()
				b.eventually("the third is applied", func() bool { return b.effects("a") == "a3" })
				b.publish("a2")
				b.eventually("the second is merged", func() bool { return b.effects("a") == "a3 a2, merged" })
				for _, name := range []string{"a2", "a3"} {
					again := event(name)
					again.UUID += ", from elsewhere"
					if err := b.transport.Publish("accounts", again); err != nil {
						t.Fatal(err)
					}
				}
				b.publish("a4")
				b.eventually("the next version is applied", func() bool { return b.effects("a") == "a3 a2, merged a4" })
				b.settle()
				b.end()
				if got := b.effects("a"); got != "a3 a2, merged a4" || len(b.entries("")) != 0 || len(gaps) != 2 {
					t.Errorf("effects %s, left %+v, OnStale was called %d times", got, b.entries(""), len(gaps))
				}
				first := 1
				if name == "IgnoreOlder" {
					first = 0
				}
				want := sequence.Gap{
					Consumer: "projection", AggregateType: "account", AggregateID: "a", Version: 2, Last: 3, First: int64(first),
				}
				if gap := <-gaps; gap != want {
					t.Errorf("gap %+v, want %+v", gap, want)
				}
			})
		})
	}
}

// Trap 79. If a higher version was applied, a replayed message is not handled. The replay
// reports the message as stale, and the entry is in quarantine again, with its own
// reason. Stale messages are not failures: neither the canary nor StopOnFailure stops the replay
// because of them.
func TestReplayOfAStaleVersionIsNotResolved(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		var calls atomic.Int32
		b.run(sequence.Config{}, func(msg *message.Message) error {
			if (msg.UUID == "a1" || msg.UUID == "b1") && calls.Add(1) > 0 {
				return retry.Permanent(errHandler)
			}
			return nil
		})
		b.publish("a1", "b1")
		b.eventually("the first ones fail", func() bool { return len(b.entries(parked.Quarantined)) == 2 })
		b.publish("a2", "b2")
		b.eventually("the second ones are applied", func() bool { return b.effects("a") == "a2" && b.effects("b") == "b2" })
		replay, err := b.poison.ReplayMatching(t.Context(), poison.Act{Actor: "test"}, poison.Filter{Consumer: "projection"},
			poison.Plan{Canary: 1, StopOnFailure: true})
		if err != nil {
			t.Fatal(err)
		}
		if replay.State != poison.ReplayFinished || replay.Stale != 2 || replay.Resolved+replay.Failed+replay.Waiting != 0 {
			t.Errorf("%s: %d stale, %d resolved, %d failed, %d waiting", replay.State, replay.Stale, replay.Resolved, replay.Failed, replay.Waiting)
		}
		if all, err := b.poison.Replays(t.Context(), 0); err != nil || len(all) != 1 || all[0].Stale != 2 || all[0].Failed != 0 {
			t.Errorf("replays %+v, error %v", all, err)
		}
		e := b.quarantined(2)[0]
		if e.Reason != poison.ReasonStale || !strings.HasSuffix(e.Error, `sequence: the version is stale: version 1 of account "a" is not `+
			`above version 2, which is applied, so the replay did not run the handler: discard the message`) {
			t.Errorf("entry %+v", e)
		}
		if got := b.effects("a"); got != "a2" || calls.Load() != 2 {
			t.Errorf("effects %s after %d calls", got, calls.Load())
		}
	})
}

func TestLateAndOnStaleAreChecked(t *testing.T) {
	tx := func(context.Context) (*sql.Tx, bool) { return nil, false }
	merge := func(context.Context, *sql.Tx, sequence.Gap, *message.Message) error { return nil }
	for want, config := range map[string]sequence.Config{
		"Late is 7, neither QuarantineLate nor IgnoreLate": {Tx: tx, Late: 7},
		"Late is set together with OnStale":                {Tx: tx, Late: sequence.IgnoreLate, OnStale: merge},
	} {
		if _, err := sequence.New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
