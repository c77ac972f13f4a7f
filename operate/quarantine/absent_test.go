package quarantine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/retry"
)

// A replay to a consumer that is not running is refused: the message would leave the
// quarantine, and nothing would handle it.
func TestReplayToAbsentConsumerIsRefused(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *operate.Config) { c.ReplayToAbsent = false })
		kit.OK(t, b.handle("payments", message.NewMessage("m1", nil), failing(errHandler)))
		id := b.list()[0].ID
		act := operate.Act{Actor: "ann", Why: "mended"}
		change := func(*message.Message) error { return nil }
		attempts := map[string]func() error{
			"quarantine: replay: ": func() error { return b.store.Replay(t.Context(), act, id) },
			"quarantine: replay:  ": func() error {
				_, err := b.store.ReplayMatching(t.Context(), act, operate.Filter{Consumer: "payments"}, operate.Plan{})
				return err
			},
			"quarantine: edit 1: ": func() error {
				_, err := b.store.Edit(t.Context(), act, id, change, quarantine.EditOptions{})
				return err
			},
		}
		refused := func(when, want string) {
			t.Helper()
			for begin, attempt := range attempts {
				if begin == "quarantine: replay:  " {
					begin = "quarantine: replay: "
				}
				text := begin + "the consumer is not running: " + want + "; start it first, or set operate.Config.ReplayToAbsent"
				if err := attempt(); !errors.Is(err, quarantine.ErrNotRunning) || err.Error() != text {
					t.Errorf("%s: got %v\nwant %s", when, err, text)
				}
			}
			if n := len(b.list()); n != 1 {
				t.Errorf("%s: %d entries are listed, want the one", when, n)
			}
		}
		refused("never", `consumer "payments" on topic "orders.placed" was never seen with retry's Subscriber, which brings replayed messages`)

		// The consumer is known: another process ran it, and has stopped.
		_, err := b.parked.Register(t.Context(), parkedrows.Consumer{Consumer: "payments", Topic: "orders.placed", Owner: "host/1/a"})
		kit.OK(t, err)
		query := b.parked.Dialect().SQL(`UPDATE {consumers} SET seen_at = {after $1}`)
		kit.Exec(t, b, query, -(3 * time.Hour).Milliseconds())
		refused("long ago", `consumer "payments" on topic "orders.placed" was last seen 3h0m0s ago`)
		if err := b.store.Replay(t.Context(), act, 99); !errors.Is(err, operate.ErrNotFound) {
			t.Errorf("of no entry: %v", err)
		}

		// A replayed entry is no longer listed as quarantined, but Replayed lists it
		// until it is handled.
		replayed := func() []quarantine.Entry {
			page, err := b.store.Replayed(t.Context(), operate.Filter{Consumer: "payments"})
			kit.OK(t, err)
			return page.Rows
		}
		if n := len(replayed()); n != 0 {
			t.Errorf("%d are shown as replayed, and none was", n)
		}
		willing, err := quarantine.New(db.DB, operate.Config{Schema: b.Config, ReplayToAbsent: true})
		kit.OK(t, err)
		kit.OK(t, willing.Replay(t.Context(), act, id))
		if all := replayed(); len(all) != 1 || all[0].ID != id || all[0].State != "waiting" || all[0].Replays != 1 {
			t.Errorf("shown as replayed: %+v", all)
		}

		// The entry is handled when the consumer runs, and a running consumer accepts
		// further replays.
		transport, err := embedded.New(db.DB, embedded.Config{Schema: b.Config, Logger: kit.Logger(t)})
		kit.OK(t, err)
		retries, err := retry.New(db.DB, retry.Config{Schema: b.Config, PollInterval: 10 * time.Millisecond})
		kit.OK(t, err)
		sub := retries.Subscriber("payments", transport.Subscriber())
		messages, err := sub.Subscribe(context.WithoutCancel(t.Context()), "orders.placed")
		kit.OK(t, err)
		(<-messages).Ack()
		kit.Eventually(t, time.Minute, "it is handled", func() bool { return len(replayed()) == 0 })
		kit.OK(t, b.handle("payments", message.NewMessage("m2", nil), failing(errHandler)))
		kit.OK(t, b.store.Replay(t.Context(), act, b.list()[0].ID))
		(<-messages).Ack()
		kit.OK(t, sub.Close())
	})
}
