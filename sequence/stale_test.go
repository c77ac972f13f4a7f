package sequence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// Trap 79. The consumer has stopped waiting for version 2 and has applied version 3. When
// version 2 arrives, it is not acked as stale: by default it goes to quarantine.
func TestVersionThatArrivesAfterItsWindowIsQuarantinedByDefault(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(sequence.Config{Policy: sequence.HoldForGap, Window: 300 * time.Millisecond}, nil)
		b.publish("a1", "a3")
		b.settle()
		b.replay(b.quarantined(1)[0])
		b.applied("a", "a1 a3")
		b.publish("a2")
		b.settle()
		if e := b.quarantined(1)[0]; e.MessageID != "a2" || e.Reason != poison.ReasonGap {
			t.Fatalf("entry %+v", e)
		}
		b.replay(b.quarantined(1)[0])
		b.quarantined(0)
		b.applied("a", "a1 a3 a2")
	})
}

// Trap 117. A late version is replayed, and the database does not write that it was
// applied, without an error. Then it has no effect, and no attempt is counted.
func TestTrap117_LateVersionHasNoEffectIfItIsNotWritten(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db)
		ignored := make(chan error, 1)
		b.decided = func(_ *message.Message, err error) {
			if errors.Is(err, dialect.ErrUnchanged) {
				select {
				case ignored <- err:
				default:
				}
			}
		}
		b.run(sequence.Config{Policy: sequence.HoldForGap, Window: 300 * time.Millisecond, AfterWindow: sequence.Apply}, nil)
		b.publish("a2")
		b.settle()
		b.publish("a1")
		b.settle()
		allow := kit.Ignore(t, db.DB, db.Dialect, "UPDATE", "once_versions", "NEW.version = OLD.version AND NEW.version = 2")
		kit.OK(t, b.quarantine.Replay(t.Context(), operate.Act{Actor: "test"}, b.quarantined(1)[0].ID))
		if err := <-ignored; !chain.Of(err).NotCalled {
			t.Errorf("the disposition of %v counts an attempt", err)
		}
		b.applied("a", "a2")
		allow()
		b.settle()
		b.applied("a", "a2 a1")
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
			eachDatabase(t, func(t *testing.T, b *bench) {
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
				b.Eventually("the third is applied", func() bool { return b.effects("a") == "a3" })
				b.publish("a2")
				b.Eventually("the second is merged", func() bool { return b.effects("a") == "a3 a2, merged" })
				for _, name := range []string{"a2", "a3"} {
					again := event(name)
					again.UUID += ", from elsewhere"
					kit.OK(t, b.transport.Publish("accounts", again))
				}
				b.publish("a4")
				b.Eventually("the next version is applied", func() bool { return b.effects("a") == "a3 a2, merged a4" })
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
	eachDatabase(t, func(t *testing.T, b *bench) {
		var calls atomic.Int32
		b.run(sequence.Config{}, func(msg *message.Message) error {
			if (msg.UUID == "a1" || msg.UUID == "b1") && calls.Add(1) > 0 {
				return retry.Permanent(errHandler)
			}
			return nil
		})
		b.publish("a1", "b1")
		b.Eventually("the first ones fail", func() bool { return len(b.entries(parkedrows.Quarantined)) == 2 })
		b.publish("a2", "b2")
		b.Eventually("the second ones are applied", func() bool { return b.effects("a") == "a2" && b.effects("b") == "b2" })
		replay, err := b.quarantine.ReplayMatching(t.Context(), operate.Act{Actor: "test"}, operate.Filter{Consumer: "projection"},
			operate.Plan{Canary: 1, StopOnFailure: true})
		kit.OK(t, err)
		if replay.State != operate.ReplayFinished || replay.Stale != 2 || replay.Resolved+replay.Failed+replay.Waiting != 0 {
			t.Errorf("%s: %d stale, %d resolved, %d failed, %d waiting", replay.State, replay.Stale, replay.Resolved, replay.Failed, replay.Waiting)
		}
		if all, err := b.quarantine.Replays(t.Context(), 0); err != nil || len(all) != 1 || all[0].Stale != 2 || all[0].Failed != 0 {
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

// A discarded message leaves its id and its content in the inbox, but not its version. So a
// late copy is skipped, another message with the same id is a collision, and the version
// can be sent again under a new id.
func TestDiscardedVersionTakesEffectUnderAnotherIDOnly(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(hold, func(msg *message.Message) error {
			if msg.UUID == "a2" {
				return retry.Permanent(errHandler)
			}
			return nil
		})
		send := func(id, body string) {
			t.Helper()
			msg := event("a2")
			msg.UUID, msg.Payload = id, []byte(body)
			kit.OK(t, b.transport.Publish("accounts", msg))
		}
		b.publish("a1", "a2")
		b.Eventually("version 2 fails", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		act := operate.Act{Actor: "test", Why: "the account was corrected"}
		kit.OK(t, b.quarantine.Discard(t.Context(), act, b.quarantined(1)[0].ID))
		send("a2", "body of a2")
		send("a2", "another body")
		b.Eventually("the collision is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		b.settle()
		if e := b.quarantined(1)[0]; e.Reason != poison.ReasonCollision || string(e.Message.Payload) != "another body" {
			t.Errorf("entry %+v", e)
		}
		send("a2, again", "body of a2")
		b.publish("a3")
		b.Eventually("version 3 is applied", func() bool { return b.effects("a") == "a1 a2, again a3" })
		if e := b.quarantined(1)[0]; e.Reason != poison.ReasonCollision {
			t.Errorf("entry %+v", e)
		}
	})
}

func TestVersionsShowWhatIsAppliedAndWhatWaits(t *testing.T) {
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db)
		versions, err := sequence.NewVersions(db.DB, sequence.VersionsConfig{Schema: b.Config})
		kit.OK(t, err)
		b.run(hold, nil)
		b.publish("a1", "a2", "c1")
		b.Eventually("three versions are applied", func() bool { return b.effects("a") == "a1 a2" && b.effects("c") == "c1" })
		b.publish("a4", "a5", "b3")
		b.early(3)

		var applied []string
		var after sequence.Version
		for { // each page has one row
			page, err := versions.List(t.Context(), sequence.VersionFilter{Consumer: "projection", Limit: 1}, after)
			kit.OK(t, err)
			if len(page) == 0 {
				break
			}
			after = page[0]
			if time.Since(after.AppliedAt).Abs() > time.Minute {
				t.Errorf("applied at %v", after.AppliedAt)
			}
			applied = append(applied, fmt.Sprintf("%s %s %d from %d", after.AggregateType, after.AggregateID, after.Version, after.CompleteFrom))
		}
		if got := strings.Join(applied, ", "); got != "account a 2 from 1, account c 1 from 1" {
			t.Errorf("applied: %s", got)
		}

		var waiting []string
		var last sequence.Waiting
		for {
			page, err := versions.Waiting(t.Context(), sequence.VersionFilter{Limit: 1}, last)
			kit.OK(t, err)
			if len(page) == 0 {
				break
			}
			last = page[0]
			if time.Since(last.EarlySince).Abs() > time.Minute || last.DueAt.IsZero() || last.Consumer != "projection" {
				t.Errorf("waiting: %+v", last)
			}
			waiting = append(waiting, fmt.Sprintf("%s: %s %s %d after %d (%t)",
				last.MessageID, last.AggregateType, last.AggregateID, last.Version, last.Last, last.Known))
		}
		if got := strings.Join(waiting, ", "); got !=
			"a4: account a 4 after 2 (true), a5: account a 5 after 2 (true), b3: account b 3 after 0 (false)" {
			t.Errorf("waiting: %s", got)
		}

		for _, f := range []sequence.VersionFilter{{AggregateID: "c"}, {AggregateType: "account", AggregateID: "c"}} {
			if page, err := versions.List(t.Context(), f, sequence.Version{}); err != nil || len(page) != 1 || page[0].AggregateID != "c" {
				t.Errorf("%v, of c: %+v", err, page)
			}
		}
		page, err := versions.List(t.Context(), sequence.VersionFilter{AggregateType: "order"}, sequence.Version{})
		if err != nil || len(page) != 0 {
			t.Errorf("%v, of orders: %+v", err, page)
		}

		one, err := versions.Waiting(t.Context(), sequence.VersionFilter{AggregateType: "account", AggregateID: "b"}, sequence.Waiting{})
		if err != nil || len(one) != 1 || one[0].MessageID != "b3" {
			t.Errorf("%v, of b: %+v", err, one)
		}
		for _, half := range []sequence.VersionFilter{{AggregateType: "account"}, {AggregateID: "b"}} {
			if _, err := versions.Waiting(t.Context(), half, last); err == nil || !strings.Contains(err.Error(), "set both or none") {
				t.Errorf("%+v: %v", half, err)
			}
		}
		if _, err := versions.List(t.Context(), sequence.VersionFilter{Limit: -1}, after); err == nil ||
			!strings.Contains(err.Error(), "Limit is -1") {
			t.Errorf("limit: %v", err)
		}
	})
	if _, err := sequence.NewVersions(nil, sequence.VersionsConfig{}); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Errorf("no database: %v", err)
	}
}
