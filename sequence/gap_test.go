package sequence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// A version that arrives too early is held, without a charge, until the earlier
// versions have arrived.
func TestEarlyVersionIsHeldUntilEarlierOnesArrive(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		b.run(hold, nil)
		b.publish("a3", "a2", "b1")
		b.early(2)
		b.eventually("the other aggregate does not wait", func() bool { return b.effects("b") == "b1" })
		for _, e := range b.entries(parked.Waiting) {
			if e.Attempts != 0 || e.Error != "" {
				t.Errorf("charged: %+v", e)
			}
		}
		// They would look again by themselves in an hour.
		b.eventually("they lie still", func() bool { return b.change(`due_at = `+b.ago(-3600)) == 2 })
		b.publish("a1")
		b.settle()
		if got := b.effects("a"); got != "a1 a2 a3" {
			t.Errorf("effects %s", got)
		}
	})
}

// A held version is handled right after the version that it waited for, not at
// the next poll.
func TestNextVersionIsHandledAtOnce(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		b.poll = time.Hour
		b.run(hold, nil)
		b.publish("a3", "a2")
		b.early(2)
		b.publish("a1")
		b.eventually("all are handled", func() bool { return b.effects("a") == "a1 a2 a3" })
	})
}

// A version is applied while the next version is being parked again, which
// would delay it for as long as it has waited already. It becomes due at once.
func TestNextVersionIsFoundWhileItIsParkedAgain(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		config := hold
		config.Window = 24 * time.Hour
		b.atOnce = 2 // also with SQLite
		onItsWay, goOn := make(chan struct{}), make(chan struct{})
		b.decided = func(msg *message.Message, err error) {
			claim := parked.DeliveryOf(msg.Context()).Claim
			if disposition.Of(err).Early != nil && claim != nil && claim.Waited > time.Minute {
				onItsWay <- struct{}{}
				<-goOn
			}
		}
		b.run(config, nil)
		b.publish("a2")
		b.early(1)
		b.eventually("it is due, and has waited for an hour", func() bool {
			return b.change(`early_since = `+b.ago(3600)+`, due_at = `+b.ago(0)) == 1
		})
		<-onItsWay
		b.publish("a1")
		b.eventually("a1 is applied", func() bool { return b.effects("a") == "a1" })
		close(goOn)
		b.settle()
		if got := b.effects("a"); got != "a1 a2" {
			t.Errorf("effects %s", got)
		}
	})
}

// Many versions of several aggregates arrive in any order, several at once, and
// some attempts fail. They take effect in order.
func TestVersionsInAnyOrderTakeEffectInOrder(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
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
			if got := b.effects(aggregate); got != strings.ReplaceAll(strings.Join(want, " "), "a", aggregate) {
				t.Errorf("effects %s", got)
			}
		}
	})
}

// When the window ends without the missing version, the held versions are
// applied in order, although their windows end together.
func TestHeldVersionsAreAppliedInOrderAfterTheWindow(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		config := hold
		config.AfterWindow = sequence.Apply
		b.run(config, nil)
		b.publish("a1")
		b.settle()
		b.publish("a6", "a5", "a4", "a3")
		b.early(4)
		b.eventually("they lie still", func() bool { return b.change(`due_at = `+b.ago(-3600)) == 4 })
		b.change(`early_since = ` + b.ago(90) + `, due_at = ` + b.ago(0)) // their windows end at the same moment
		b.settle()
		if got := b.effects("a"); got != "a1 a3 a4 a5 a6" {
			t.Errorf("effects %s", got)
		}
		b.publish("a2")
		b.settle()
		if got := b.effects("a"); got != "a1 a3 a4 a5 a6" {
			t.Errorf("effects after the missing one came: %s", got)
		}

		// It has had no effect: so it is not ignored, and takes effect when it is
		// replayed. Then it is known to be done.
		entries := b.entries(parked.Quarantined)
		const tooLate = "retry: given up at attempt 1: sequence: version 2 of account \"a\" came after version 6 had been applied without it: " +
			"replay it to apply it now, out of order, or discard it"
		if len(entries) != 1 || entries[0].Reason != poison.ReasonGap || entries[0].Error != tooLate {
			t.Fatalf("entries %+v", entries)
		}
		if err := b.poison.Replay(t.Context(), poison.Act{Actor: "test"}, entries[0].ID); err != nil {
			t.Fatal(err)
		}
		b.settle()
		again := event("a2")
		again.UUID = "a2, again"
		if err := b.transport.Publish("accounts", again); err != nil {
			t.Fatal(err)
		}
		b.settle()
		if got := b.effects("a"); got != "a1 a3 a4 a5 a6 a2" || len(b.entries(parked.Quarantined)) != 0 {
			t.Errorf("effects after the replay: %s, entries %+v", got, b.entries(""))
		}
	})
}

// With AfterWindow Quarantine, the held versions are given up. A replay holds a
// version once more, and then applies it.
func TestHeldVersionsAreQuarantinedAfterTheWindow(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		config := hold
		config.Window = 300 * time.Millisecond
		b.run(config, nil)
		b.publish("a3")
		b.settle()
		entries := b.entries(parked.Quarantined)
		if len(entries) != 1 || entries[0].Reason != poison.ReasonGap ||
			!strings.Contains(entries[0].Error, ": sequence: version 3 of account \"a\" came, and no earlier version in ") ||
			!strings.HasSuffix(entries[0].Error, "ms: versions must begin at 1 (Config.First); replay it to begin with it") {
			t.Fatalf("entries %+v", entries)
		}
		if err := b.poison.Replay(t.Context(), poison.Act{Actor: "test"}, entries[0].ID); err != nil {
			t.Fatal(err)
		}
		b.settle()
		if got := b.effects("a"); got != "a3" {
			t.Errorf("effects %s", got)
		}
	})
}

// A middleware outside of the chain receives the Gap in the error when a
// message is given up, so that it can request the missing version. While the
// message is held, it sees no gap.
func TestOuterMiddlewareSeesTheGap(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		config := hold
		config.Window = 300 * time.Millisecond
		gaps := make(chan sequence.Gap, 10)
		b.decided = func(_ *message.Message, err error) {
			missing, found := errors.AsType[*sequence.GapError](err)
			if found != errors.Is(err, sequence.ErrGap) {
				t.Errorf("one of ErrGap and GapError only: %v", err)
			}
			if found {
				gaps <- missing.Gap
			}
		}
		b.run(config, nil)
		b.publish("a1", "a4")
		b.settle()
		if len(gaps) != 1 {
			t.Fatalf("told %d times", len(gaps))
		}
		gap := <-gaps
		if gap.Waited < config.Window {
			t.Errorf("told after %v", gap.Waited)
		}
		gap.Waited = 0
		want := sequence.Gap{Consumer: "projection", AggregateType: "account", AggregateID: "a", Version: 4, Last: 1, First: 1}
		if gap != want {
			t.Errorf("gap %+v, want %+v", gap, want)
		}
	})
}

// OnGap decides after the window, and may fetch the missing version and write
// it in the transaction.
func TestOnGapDecidesAfterTheWindow(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		config := hold
		config.Window = 300 * time.Millisecond
		gaps := make(chan sequence.Gap, 10)
		config.OnGap = func(ctx context.Context, tx *sql.Tx, gap sequence.Gap) (sequence.AfterWindow, error) {
			gaps <- gap
			switch {
			case gap.AggregateID == "b":
				return sequence.Quarantine, nil
			case len(gaps) == 1:
				return sequence.Apply, errors.Join(errHandler, effect(ctx, tx, "a1 of an attempt that fails"))
			}
			return sequence.Apply, effect(ctx, tx, "a1, fetched")
		}
		b.run(config, nil)
		b.publish("a2")
		b.settle()
		if got := b.effects("a"); got != "a1, fetched a2" {
			t.Errorf("effects %s", got)
		}
		gap := <-gaps
		if gap.Consumer != "projection" || gap.AggregateType != "account" || gap.AggregateID != "a" || gap.Version != 2 ||
			gap.Last != 0 || gap.Waited < config.Window {
			t.Errorf("gap %+v", gap)
		}
		b.publish("a1") // the hook has brought it
		b.settle()
		if got := b.effects("a"); got != "a1, fetched a2" || len(b.entries(parked.Quarantined)) != 0 {
			t.Errorf("effects %s, entries %+v", got, b.entries(""))
		}
		b.publish("b2")
		b.settle()
		if entries := b.entries(parked.Quarantined); len(entries) != 1 || entries[0].Reason != disposition.ReasonGap {
			t.Errorf("entries %+v", entries)
		}
	})
}

// The window begins when a message is found to be early, not when it was
// stored, and a restart does not begin it again.
func TestWindowContinuesAfterARestart(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		for _, name := range []string{"a2", "a1"} {
			if err := b.parked.Deliver(t.Context(), "accounts", []string{"projection"}, event(name)); err != nil {
				t.Fatal(err)
			}
		}
		b.exec(`UPDATE once_parked SET created_at = ` + b.ago(3600))
		b.run(hold, nil)
		b.settle()
		if got := b.effects("a"); got != "a1 a2" {
			t.Fatalf("effects %s", got)
		}

		b.publish("a4")
		b.early(1)
		b.end()
		b.exec(`UPDATE once_parked SET early_since = ` + b.ago(3600))
		config := hold
		config.AfterWindow = sequence.Apply
		b.run(config, nil)
		b.settle()
		if got := b.effects("a"); got != "a1 a2 a4" {
			t.Fatalf("effects %s", got)
		}
	})
}

// A version whose handler fails is not the last version. With IgnoreOlder a
// newer version can be applied before its retry, which is then ignored.
func TestFailedVersionIsNotTheLastVersion(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
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
		b.eventually("it has failed", func() bool {
			entries := b.entries(parked.Waiting)
			return len(entries) == 1 && entries[0].Attempts == 1
		})
		b.publish("a2")
		<-passed
		b.eventually("it is due", func() bool { return b.effects("a") == "a2" && b.change(`due_at = `+b.ago(0)) == 1 })
		b.settle()
		if got := b.effects("a"); got != "a2" || calls != 1 || len(b.entries("")) != 0 {
			t.Errorf("effects %s after %d calls, left %+v", got, calls, b.entries(""))
		}
	})
}

// An early message does not block its ordering key, because the missing version
// may be behind it.
func TestEarlyVersionDoesNotBlockItsOrderingKey(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		b.order = retry.BlockWhileQuarantined
		b.run(hold, nil)
		b.publish("a3", "a2", "a1")
		b.settle()
		if got := b.effects("a"); got != "a1 a2 a3" {
			t.Errorf("effects %s", got)
		}
	})
}

// Versions that do not begin at Config.First are logged once while they wait,
// not only when they are in quarantine. A short wait is not logged.
func TestVersionsThatDoNotBeginAtFirstAreLogged(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		var logs testkit.Logs
		config := hold
		config.Logger = &logs
		b.run(config, nil)
		b.publish("a17", "b4")
		b.early(2)
		b.publish("c1", "c3")
		b.early(3)
		if logs.Has("Messages wait") {
			t.Errorf("said too early: %q", logs.Lines())
		}
		b.change(`early_since = ` + b.ago(20) + `, due_at = ` + b.ago(0))
		b.eventually("it is logged", func() bool { return logs.Has("Messages wait") })
		b.change(`due_at = ` + b.ago(0))
		b.early(3)
		b.end()
		if n := logs.Count("Messages wait"); n != 1 {
			t.Errorf("logged %d times: %q", n, logs.Lines())
		}
		if !logs.Has(`ERROR Messages wait for the first version of their aggregate`, "consumer=projection", "held_for_at_most=1m0s",
			` of account "`, ` is held, because no version of it has been applied; versions must begin at 1 (Config.First): `+
				`for aggregates that are older than this consumer, insert their last versions into "once_versions", see docs/choosing.md`) ||
			logs.Has("Messages wait", `account "c"`) {
			t.Errorf("logged: %q", logs.Lines())
		}
	})
}

// For aggregates that began before the consumer, an operator inserts their last
// versions. The consumer treats these versions as applied.
func TestConsumerStartsInTheMiddleOfAnAggregate(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		b.exec(`INSERT INTO once_versions (consumer, aggregate_type, aggregate_id, version, complete_from, applied_at)
			VALUES ('projection', 'account', 'a', 16, 1, ` + b.ago(0) + `)`)
		b.run(hold, nil)
		b.publish("a18", "a16", "a17")
		b.settle()
		if got := b.effects("a"); got != "a17 a18" || len(b.entries("")) != 0 {
			t.Errorf("effects %s, left %+v", got, b.entries(""))
		}
	})
}

// Trap 79. If the window ends while a lower version is still retried, the lower
// version goes to quarantine and is not ignored.
func TestVersionRetriedPastTheWindowIsQuarantined(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
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
		b.eventually("it waits for its next try", func() bool {
			entries := b.entries(parked.Waiting)
			return len(entries) == 1 && entries[0].Attempts == 1
		})
		b.publish("a2")
		b.early(1)
		b.eventually("its window is over", func() bool {
			b.exec(`UPDATE once_parked SET early_since = ` + b.ago(90) + `, due_at = ` + b.ago(0) +
				` WHERE early_since IS NOT NULL AND token IS NULL`)
			return b.effects("a") == "a2"
		})
		b.eventually("the first is due", func() bool { return b.change(`due_at = `+b.ago(0)) == 1 })
		b.settle()
		if entries := b.entries(parked.Quarantined); len(entries) != 1 || entries[0].MessageID != "a1" || entries[0].Reason != poison.ReasonGap {
			t.Fatalf("entries %+v", entries)
		}
		if err := b.poison.Replay(t.Context(), poison.Act{Actor: "test"}, b.entries(parked.Quarantined)[0].ID); err != nil {
			t.Fatal(err)
		}
		b.settle()
		if got := b.effects("a"); got != "a2 a1" {
			t.Errorf("effects %s", got)
		}
	})
}
