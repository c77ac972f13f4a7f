package sequence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/sequence"
)

// If the missing version has not arrived when the window ends, the held versions are
// applied in order, even if their windows end at the same moment.
func TestHeldVersionsAreAppliedInOrderAfterTheWindow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		config := hold
		config.AfterWindow = sequence.Apply
		b.run(config, nil)
		b.publish("a1")
		b.settle()
		b.publish("a6", "a5", "a4", "a3")
		b.early(4)
		b.postpone(4)
		b.change(`early_since = ` + b.ago(90) + `, due_at = ` + b.ago(0)) // all windows end at the same moment
		b.settle()
		b.applied("a", "a1 a3 a4 a5 a6")
		b.publish("a2")
		b.settle()
		if got := b.effects("a"); got != "a1 a3 a4 a5 a6" {
			t.Errorf("effects after the missing version arrived: %s", got)
		}

		// The late version has had no effect, so it is not ignored. A replay applies it.
		// After the replay, a duplicate of it is ignored.
		entries := b.entries(parkedrows.Quarantined)
		const tooLate = "retry: given up after attempt 1: " +
			"sequence: version 2 of account \"a\" came after version 6 had been applied without it: " +
			"replay it to apply it now, out of order, or discard it"
		if len(entries) != 1 || entries[0].Reason != poison.ReasonGap || entries[0].Error != tooLate {
			t.Fatalf("entries %+v", entries)
		}
		b.replay(entries[0])
		again := event("a2")
		again.UUID = "a2, again"
		kit.OK(t, b.transport.Publish("accounts", again))
		b.settle()
		if got := b.effects("a"); got != "a1 a3 a4 a5 a6 a2" || len(b.entries(parkedrows.Quarantined)) != 0 {
			t.Errorf("effects after the replay: %s, entries %+v", got, b.entries(""))
		}
	})
}

// With AfterWindow Quarantine, held versions go to quarantine when their window ends.
// When a version is replayed, it is held for one more window, and is then applied.
func TestHeldVersionsAreQuarantinedAfterTheWindow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		config := hold
		config.Window = 300 * time.Millisecond
		b.run(config, nil)
		b.publish("a3")
		b.settle()
		entries := b.entries(parkedrows.Quarantined)
		if len(entries) != 1 || entries[0].Reason != poison.ReasonGap ||
			!strings.Contains(entries[0].Error, ": sequence: version 3 of account \"a\" came, and no earlier version in ") ||
			!strings.HasSuffix(entries[0].Error, "s: versions must begin at 1 (Config.FromZero); replay it to begin with it") {
			t.Fatalf("entries %+v", entries)
		}
		b.replay(entries[0])
		b.applied("a", "a3")
	})
}

// When a message is given up on, an outer middleware finds ErrGap and the versions in the
// error. While the message is held, the error is another one.
func TestOuterMiddlewareSeesTheGap(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		config := hold
		config.Window = 300 * time.Millisecond
		gaps := make(chan error, 10)
		b.decided = func(_ *message.Message, err error) {
			if errors.Is(err, sequence.ErrGap) {
				gaps <- err
			}
		}
		b.run(config, nil)
		b.publish("a1", "a4")
		b.settle()
		if len(gaps) != 1 {
			t.Fatalf("the middleware saw %d gaps", len(gaps))
		}
		want := `sequence: version 4 of account "a" came after version 1, and the versions between did not come in `
		if got := (<-gaps).Error(); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// OnGap is called after the window. It may fetch the missing version, and write it in
// the transaction.
func TestOnGapDecidesAfterTheWindow(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
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
		b.applied("a", "a1, fetched a2")
		gap := <-gaps
		if gap.Consumer != "projection" || gap.AggregateType != "account" || gap.AggregateID != "a" || gap.Version != 2 ||
			gap.Last != 0 || gap.Waited < config.Window {
			t.Errorf("gap %+v", gap)
		}
		b.publish("a1") // OnGap has written what this version would write
		b.settle()
		if got := b.effects("a"); got != "a1, fetched a2" || len(b.entries(parkedrows.Quarantined)) != 0 {
			t.Errorf("effects %s, entries %+v", got, b.entries(""))
		}
		b.publish("b2")
		b.settle()
		if entries := b.entries(parkedrows.Quarantined); len(entries) != 1 || entries[0].Reason != chain.ReasonGap {
			t.Errorf("entries %+v", entries)
		}
	})
}

// The window begins when a message is found to be early, not when it was stored. It does
// not begin again after a restart.
func TestWindowContinuesAfterARestart(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		for _, name := range []string{"a2", "a1"} {
			kit.OK(t, b.parked.Deliver(t.Context(), "accounts", []string{"projection"}, event(name)))
		}
		b.Exec(`UPDATE once_parked SET created_at = ` + b.ago(3600))
		b.run(hold, nil)
		b.settle()
		b.applied("a", "a1 a2")

		b.publish("a4")
		b.early(1)
		b.end()
		b.Exec(`UPDATE once_parked SET early_since = ` + b.ago(3600))
		config := hold
		config.AfterWindow = sequence.Apply
		b.run(config, nil)
		b.settle()
		b.applied("a", "a1 a2 a4")
	})
}
