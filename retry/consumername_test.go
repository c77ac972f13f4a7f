package retry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

const inUse = `retry: consumer "payments" is already used by another handler of this process on topic "orders.placed": ` +
	`give each handler its own consumer name; to add one handler more than once, set retry.Config.ShareConsumer`

// unshared sets ShareConsumer to its default.
func unshared(c *retry.Config) { c.ShareConsumer = false }

// Trap 89. If two handlers have the same consumer name, each skips messages that the
// other has handled. So the second handler must not start.
func TestSecondHandlerWithSameConsumerNameDoesNotStart(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		for name, second := range map[string]func(b *bench) *retry.Retries{
			"one Retries": func(b *bench) *retry.Retries { return b.retries },
			"two Retries": func(b *bench) *retry.Retries { return newBench(b.T, b.Database, unshared).retries },
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, db, unshared)
				subscribed(t, b.retries, consumer, topic)
				sub := second(b).Subscriber(consumer, newTransport())
				_, err := sub.Subscribe(t.Context(), topic) // a router's Run returns this error
				if !errors.Is(err, retry.ErrConsumerInUse) || err.Error() != inUse {
					t.Errorf("got %v\nwant %s", err, inUse)
				}
				if err := sub.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// subscribed subscribes a consumer until the test ends.
func subscribed(t *testing.T, r *retry.Retries, name, topic string) message.Subscriber {
	t.Helper()
	sub := r.Subscriber(name, newTransport())
	t.Cleanup(func() {
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := sub.Subscribe(t.Context(), topic); err != nil {
		t.Fatalf("%s on %s: %v", name, topic, err)
	}
	return sub
}

// The consumer name may be used again in three cases: for another topic or in another
// database, after the first subscription has ended, and with ShareConsumer. Other names
// may be used for the same topic.
func TestConsumerNameMayBeReusedOnPurpose(t *testing.T) {
	t.Parallel()
	b, other := newBench(t, testkit.SQLite(t), unshared), newBench(t, testkit.SQLite(t), unshared)
	first := subscribed(t, b.retries, consumer, topic)
	subscribed(t, b.retries, consumer, "orders.changed")
	subscribed(t, b.retries, "inventory", topic)
	subscribed(t, other.retries, consumer, topic)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	second := b.retries.Subscriber(consumer, newTransport())
	if _, err := second.Subscribe(ctx, topic); err != nil {
		t.Fatal(err)
	}
	cancel()
	subscribed(t, b.retries, consumer, topic)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	shared := newBench(t, b.Database, func(c *retry.Config) { c.ShareConsumer = true }).retries
	if _, err := shared.Subscriber(consumer, newTransport()).Subscribe(t.Context(), topic); !errors.Is(err, retry.ErrConsumerInUse) {
		t.Errorf("shared subscription beside an unshared one: %v", err)
	}
	subscribed(t, shared, "shared", topic)
	subscribed(t, shared, "shared", topic)
}

func TestConsumerInUseErrorNamesHandlerAfterFirstMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.SQLite(t), unshared)
	b.run(func(*message.Message) error { return nil })
	if !b.transport.deliver(t, message.NewMessage("m1", nil)) {
		t.Fatal("not acked")
	}
	_, err := b.retries.Subscriber(consumer, newTransport()).Subscribe(t.Context(), topic)
	const want = `retry: consumer "payments" is already used by handler "handler-1" on topic "orders.placed": ` +
		`give each handler its own consumer name; to add one handler more than once, set retry.Config.ShareConsumer`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// A handler in another process is known only by its row in the table of consumers. This
// handler must be logged, unless its process is a replica of this program.
func TestOtherHandlerInAnotherProcessIsLogged(t *testing.T) {
	t.Parallel()
	const begin = "ERROR Consumer name is used by two handlers, each skips messages that the other has handled"
	const line = begin + " consumer=payments topic=orders.placed err="
	for name, c := range map[string]struct{ set, want string }{
		"another program": {
			`program = 'example.com/billing'`,
			`consumer "payments" on topic "orders.placed" is also run by program "example.com/billing": ` +
				`give each handler its own consumer name, unless a deploy is just renaming this one`,
		},
		"another handler": {
			`handler = 'h2'`,
			`consumer "payments" on topic "orders.placed" is also run by handler "h2" of another process: ` +
				`give each handler its own consumer name, unless a deploy is just renaming this one`,
		},
		"a replica":             {`owner = 'elsewhere'`, ""},
		"one that ended before": {`program = 'old', seen_at = 1`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var logs testkit.Logs
			b := newBench(t, testkit.SQLite(t), func(c *retry.Config) { c.Logger = &logs })
			b.retries.SetRegisterEvery(pollInterval)
			b.run(func(*message.Message) error { return nil })
			if !b.transport.deliver(t, message.NewMessage("m1", nil)) {
				t.Fatal("not acked")
			}
			row := func(where string) bool {
				var n int
				err := b.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_consumers WHERE `+where).Scan(&n)
				return err == nil && n == 1
			}
			testkit.Eventually(t, time.Minute, "the row has the name of the handler", func() bool { return row(`handler = 'handler-1'`) })
			for range 3 { // the other handler must be logged only once
				if _, err := b.ExecContext(t.Context(), `UPDATE once_consumers SET owner = 'elsewhere', `+c.set); err != nil {
					t.Fatal(err)
				}
				testkit.Eventually(t, time.Minute, "the row is renewed", func() bool { return row(`owner <> 'elsewhere'`) })
			}
			want := 0
			if c.want != "" {
				want = 1
			}
			if logs.Count(begin) != want || logs.CountLine(line+c.want) != want {
				t.Errorf("want %q %d times, logged %q", c.want, want, logs.Lines())
			}
		})
	}
}

// At its first registration, a consumer may find the registration of a process that has
// just ended, for example before a deploy that renames a handler. This must not be logged.
func TestOtherHandlerBeforeTheFirstRegistrationIsNotLogged(t *testing.T) {
	t.Parallel()
	var logs testkit.Logs
	b := newBench(t, testkit.SQLite(t), func(c *retry.Config) { c.Logger = &logs })
	if _, err := b.parked.Register(t.Context(), parked.Consumer{Consumer: consumer, Topic: topic, Owner: "elsewhere"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ExecContext(t.Context(), `UPDATE once_consumers SET program = 'example.com/billing'`); err != nil {
		t.Fatal(err)
	}
	b.run(func(*message.Message) error { return nil })
	b.eventually("the consumer is registered", func() bool { return b.count(`once_consumers WHERE owner <> 'elsewhere'`) == 1 })
	if err := b.router.Close(); err != nil {
		t.Fatal(err)
	}
	if logs.Has("ERROR") {
		t.Errorf("logged %q", logs.Lines())
	}
}
