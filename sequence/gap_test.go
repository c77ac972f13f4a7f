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

// What comes too early is held, uncharged, until those before it have come.
func TestAGapIsWaitedFor(t *testing.T) {
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

// What was held is handled after what it waited for, and not at the next poll.
func TestTheNextOneIsHandledAtOnce(t *testing.T) {
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

// A version is applied while the next one is on its way to being parked again,
// for as long as it has waited already. It is due at once.
func TestTheNextOneIsFoundOnItsWay(t *testing.T) {
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

// Many versions of several aggregates come in any order, several at once, and
// fail now and then: they take effect in order.
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

// When the window is over without the missing version, those that were held go
// on in order, though their windows end together.
func TestAfterTheWindowTheyAreAppliedInOrder(t *testing.T) {
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
		const tooLate = "retry: given up after attempt 1: sequence: version 2 of account \"a\" came after version 6 had been applied without it: " +
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

// Or they are given up. A replay holds once more, and applies.
func TestAfterTheWindowTheyAreQuarantined(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db)
		config := hold
		config.Window = 300 * time.Millisecond
		b.run(config, nil)
		b.publish("a3")
		b.settle()
		entries := b.entries(parked.Quarantined)
		if len(entries) != 1 || entries[0].Reason != poison.ReasonGap ||
			!strings.Contains(entries[0].Error, ": sequence: version 3 of account \"a\" came, and none before it in ") ||
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

// A middleware of the service's own, further out, learns what was missing: it can
// have it sent again. While the message is held it is told of no gap.
func TestAMiddlewareFurtherOutLearnsWhatIsMissing(t *testing.T) {
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

// Or a hook decides, which may bring what is missing, in the transaction.
func TestAfterTheWindowAHookDecides(t *testing.T) {
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
// stored, and a restart does not begin it anew.
func TestTheWindowOutlivesARestart(t *testing.T) {
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

// A version whose handler fails is not the last. With IgnoreOlder a newer one
// passes it, and it is stale when it is tried again.
func TestAVersionThatFailsIsNotApplied(t *testing.T) {
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

// A message that is early lets its ordering key go on: what it waits for may be
// behind it.
func TestAGapDoesNotStopItsKey(t *testing.T) {
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

// Versions that do not begin at Config.First are said while they wait, not only
// when they are in quarantine, and once. A short wait is said nothing of.
func TestVersionsThatBeginElsewhereAreLogged(t *testing.T) {
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
			` of account "`, ` is held, since none of its versions has been applied; versions must begin at 1 (Config.First): `+
				`for aggregates that began before this consumer did, insert their last versions into "once_versions", see docs/choosing.md`) ||
			logs.Has("Messages wait", `account "c"`) {
			t.Errorf("logged: %q", logs.Lines())
		}
	})
}

// What an operator inserts for aggregates that began before the consumer did is
// taken for what was applied.
func TestAConsumerBeginsInTheMiddleOfAnAggregate(t *testing.T) {
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

// Trap 79. A window that ends while a lower version is retried sends that one to
// quarantine: it is not ignored.
func TestAVersionIsRetriedPastTheWindow(t *testing.T) {
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
