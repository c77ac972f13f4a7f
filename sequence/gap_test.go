package sequence_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// A version that arrives too early is held until the earlier versions have arrived.
// Waiting does not count as an attempt.
func TestEarlyVersionIsHeldUntilEarlierOnesArrive(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(hold, nil)
		b.publish("a3", "a2", "b1")
		b.early(2)
		b.Eventually("the other aggregate does not wait", func() bool { return b.effects("b") == "b1" })
		for _, e := range b.entries(parkedrows.Waiting) {
			if e.Attempts != 0 || e.Error != "" {
				t.Errorf("charged: %+v", e)
			}
		}
		b.postpone(2)
		b.publish("a1")
		b.settle()
		b.applied("a", "a1 a2 a3")
	})
}

// A held version is handled immediately after the version that it waited for. It does not
// wait for the next poll.
func TestNextVersionIsHandledAtOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.poll = time.Hour
		b.run(hold, nil)
		b.publish("a3", "a2")
		b.early(2)
		b.publish("a1")
		b.Eventually("all are handled", func() bool { return b.effects("a") == "a1 a2 a3" })
	})
}

// While a version is being applied, the next version is being parked again. Normally
// the next version would then wait as long as it has waited so far. Here it must become
// due immediately.
func TestNextVersionIsFoundWhileItIsParkedAgain(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		config := hold
		config.Window = 24 * time.Hour
		b.atOnce = 2 // SQLite needs this, because its default is 1
		onItsWay, goOn := make(chan struct{}), make(chan struct{})
		b.decided = func(msg *message.Message, err error) {
			claim := parkedrows.DeliveryOf(msg.Context()).Claim
			if chain.Of(err).Early != nil && claim != nil && claim.Waited > time.Minute {
				onItsWay <- struct{}{}
				<-goOn
			}
		}
		b.run(config, nil)
		b.publish("a2")
		b.early(1)
		b.Eventually("it is due, and has waited for an hour", func() bool {
			return b.change(`early_since = `+b.ago(3600)+`, due_at = `+b.ago(0)) == 1
		})
		<-onItsWay
		b.publish("a1")
		b.Eventually("a1 is applied", func() bool { return b.effects("a") == "a1" })
		for _, e := range b.entries(parkedrows.Waiting) {
			if e.MessageID == "a2" && !e.DueAt.After(time.Now()) {
				t.Errorf("the lease of the claimed version has ended: %+v", e)
			}
		}
		close(goOn)
		b.settle()
		b.applied("a", "a1 a2")
	})
}

// Versions of several aggregates arrive in random order, several at a time, and some
// attempts fail. The versions still take effect in order.
func TestVersionsInAnyOrderTakeEffectInOrder(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		var failed sync.Map
		b.run(hold, func(msg *message.Message) error {
			if _, again := failed.LoadOrStore(msg.UUID, true); !again && rand.IntN(5) == 0 {
				return errHandler
			}
			return nil
		})
		const versions = 12
		var all, want []string
		for v := 1; v <= versions; v++ {
			want = append(want, fmt.Sprintf("a%d", v))
			all = append(all, fmt.Sprintf("a%d", v), fmt.Sprintf("b%d", v))
		}
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		b.publish(all...)
		b.settle()
		for _, aggregate := range []string{"a", "b"} {
			b.applied(aggregate, strings.ReplaceAll(strings.Join(want, " "), "a", aggregate))
		}
	})
}

// A version whose handler fails does not become the last version. With IgnoreOlder, a
// newer version can be applied before the failed version is retried. The retry is then
// ignored.
func TestFailedVersionIsNotTheLastVersion(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		calls := 0
		passed := make(chan struct{})
		b.run(sequence.Config{}, func(msg *message.Message) error {
			if msg.UUID == "a1" {
				calls++
				return retry.After(errHandler, time.Hour)
			}
			close(passed)
			return nil
		})
		b.publish("a1")
		b.Eventually("it has failed", func() bool {
			entries := b.entries(parkedrows.Waiting)
			return len(entries) == 1 && entries[0].Attempts == 1
		})
		b.publish("a2")
		<-passed
		b.Eventually("it is due", func() bool { return b.effects("a") == "a2" && b.change(`due_at = `+b.ago(0)) == 1 })
		b.settle()
		if got := b.effects("a"); got != "a2" || calls != 1 || len(b.entries("")) != 0 {
			t.Errorf("effects %s after %d calls, left %+v", got, calls, b.entries(""))
		}
	})
}

// An early message does not block its ordering key, because the missing version may come
// after it in the order of the key.
func TestEarlyVersionDoesNotBlockItsOrderingKey(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.order = retry.BlockWhileQuarantined
		b.run(hold, nil)
		b.publish("a3", "a2", "a1")
		b.settle()
		b.applied("a", "a1 a2 a3")
	})
}

// If versions do not begin at Config.FromZero, this is logged once while they still wait,
// before they go to quarantine. A short wait is not logged.
func TestVersionsThatDoNotBeginAtFirstAreLogged(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		var logs kit.Logs
		config := hold
		config.Logger = &logs
		checked := make(chan struct{}, 1)
		b.decided = func(msg *message.Message, _ error) {
			claim := parkedrows.DeliveryOf(msg.Context()).Claim
			if msg.UUID == "c3" && claim != nil && claim.Waited > 10*time.Second {
				select {
				case checked <- struct{}{}:
				default:
				}
			}
		}
		b.run(config, nil)
		b.publish("c1", "c3")
		b.early(1)
		b.Eventually("c3 has waited", func() bool { return b.change(`early_since = `+b.ago(20)+`, due_at = `+b.ago(0)) == 1 })
		<-checked // c3 waits for c2, and not for the first version
		b.publish("a17", "b4")
		b.early(3)
		if logs.Has("Messages wait") {
			t.Errorf("logged too early: %q", logs.Lines())
		}
		b.change(`early_since = ` + b.ago(20) + `, due_at = ` + b.ago(0))
		b.Eventually("it is logged", func() bool { return logs.Has("Messages wait") })
		b.change(`due_at = ` + b.ago(0))
		b.early(3)
		b.end()
		if n := logs.Count("Messages wait"); n != 1 {
			t.Errorf("logged %d times: %q", n, logs.Lines())
		}
		if !logs.Has(`ERROR Messages wait for the first version of their aggregate`, "consumer=projection", "held_for_at_most=1m0s",
			` of account "`, ` is held, because no version of it has been applied; versions must begin at 1 (Config.FromZero): `+
				`for aggregates that are older than this consumer, insert their last versions into "once_versions", see docs/ordering.md`) ||
			logs.Has("Messages wait", `account "c"`) {
			t.Errorf("logged: %q", logs.Lines())
		}
	})
}

// For aggregates that began before the consumer existed, an operator inserts their last
// versions. The consumer treats these versions as applied.
func TestConsumerStartsInTheMiddleOfAnAggregate(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.Exec(`INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
			VALUES ('projection', 'account', 'a', 16, 1, ` + b.ago(0) + `)`)
		b.run(hold, nil)
		b.publish("a18", "a16", "a17")
		b.settle()
		if got := b.effects("a"); got != "a17 a18" || len(b.entries("")) != 0 {
			t.Errorf("effects %s, left %+v", got, b.entries(""))
		}
	})
}

// An operator inserts the last version of an aggregate while a lower version is held. After
// its window, a higher version does not wait for the lower one, which is late.
func TestHeldVersionBelowTheLastOneDelaysNoOther(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		config := hold
		config.AfterWindow = sequence.Apply
		b.run(config, nil)
		b.publish("a2")
		b.early(1)
		b.postpone(1)
		b.Exec(`INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
			VALUES ('projection', 'account', 'a', 3, 1, ` + b.ago(0) + `)`)
		b.publish("a5")
		b.early(2)
		b.Eventually("it is applied after its window", func() bool {
			b.Exec(`UPDATE once_parked SET early_since = ` + b.ago(90) + `, due_at = ` + b.ago(0) +
				` WHERE message_id = 'a5' AND token IS NULL`)
			return b.effects("a") == "a5"
		})
		b.Eventually("the lower version is due", func() bool { return b.change(`due_at = `+b.ago(0)) == 1 })
		b.settle()
		if e := b.quarantined(1)[0]; e.MessageID != "a2" || e.Reason != poison.ReasonGap || b.effects("a") != "a5" {
			t.Errorf("effects %s, entry %+v", b.effects("a"), e)
		}
	})
}

// Trap 79. If the window ends while a lower version is still being retried, the lower
// version later goes to quarantine instead of being ignored.
func TestVersionRetriedPastTheWindowIsQuarantined(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		config := hold
		config.AfterWindow = sequence.Apply
		failed := make(chan struct{}, 10)
		b.run(config, func(msg *message.Message) error {
			if msg.UUID == "a1" && len(failed) == 0 {
				failed <- struct{}{}
				return retry.After(errHandler, time.Hour)
			}
			return nil
		})
		b.publish("a1")
		b.Eventually("it waits for its next try", func() bool {
			entries := b.entries(parkedrows.Waiting)
			return len(entries) == 1 && entries[0].Attempts == 1
		})
		b.publish("a2")
		b.early(1)
		b.Eventually("its window is over", func() bool {
			b.Exec(`UPDATE once_parked SET early_since = ` + b.ago(90) + `, due_at = ` + b.ago(0) +
				` WHERE early_since IS NOT NULL AND token IS NULL`)
			return b.effects("a") == "a2"
		})
		b.Eventually("the first is due", func() bool { return b.change(`due_at = `+b.ago(0)) == 1 })
		b.settle()
		entries := b.entries(parkedrows.Quarantined)
		if len(entries) != 1 || entries[0].MessageID != "a1" || entries[0].Reason != poison.ReasonGap {
			t.Fatalf("entries %+v", entries)
		}
		b.replay(entries[0])
		b.applied("a", "a2 a1")
	})
}

// If OnGap hides the error of a statement, or loses the session, the version cannot be
// written. This must count as a failed attempt, so that the message does not wait
// without end.
func TestOnGapThatFailsItsTransactionIsCharged(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{
		"hides an error":   `SELECT 1/0`,
		"ends its session": `SELECT pg_terminate_backend(pg_backend_pid())`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Postgres(t))
			config := hold
			config.Window = 200 * time.Millisecond
			config.OnGap = func(ctx context.Context, tx *sql.Tx, _ sequence.Gap) (sequence.AfterWindow, error) {
				_, _ = tx.ExecContext(ctx, query)
				return sequence.Apply, nil
			}
			b.run(config, nil)
			b.publish("a2")
			b.settle()
			e := b.quarantined(1)[0]
			if e.Reason != poison.ReasonExhausted || !strings.Contains(e.Error, "sequence: write the version: ") {
				t.Errorf("quarantined for %q: %s", e.Reason, e.Error)
			}
		})
	}
}
