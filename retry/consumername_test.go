package retry_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
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
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
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
				kit.Check(t, sub.Close())
			})
		}
	})
}

// subscribed subscribes a consumer until the test ends.
func subscribed(t *testing.T, r *retry.Retries, name, topic string) message.Subscriber {
	t.Helper()
	sub := r.Subscriber(name, newTransport())
	t.Cleanup(func() {
		kit.Check(t, sub.Close())
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
	b, other := newBench(t, kit.SQLite(t), unshared), newBench(t, kit.SQLite(t), unshared)
	first := subscribed(t, b.retries, consumer, topic)
	subscribed(t, b.retries, consumer, "orders.changed")
	subscribed(t, b.retries, "inventory", topic)
	subscribed(t, other.retries, consumer, topic)
	kit.OK(t, first.Close())
	ctx, cancel := context.WithCancel(t.Context())
	second := b.retries.Subscriber(consumer, newTransport())
	kit.OK(t, kit.Err(second.Subscribe(ctx, topic)))
	cancel()
	subscribed(t, b.retries, consumer, topic)
	kit.OK(t, second.Close())

	shared := newBench(t, b.Database, func(c *retry.Config) { c.ShareConsumer = true }).retries
	if _, err := shared.Subscriber(consumer, newTransport()).Subscribe(t.Context(), topic); !errors.Is(err, retry.ErrConsumerInUse) {
		t.Errorf("shared subscription beside an unshared one: %v", err)
	}
	subscribed(t, shared, "shared", topic)
	subscribed(t, shared, "shared", topic)
}

func TestConsumerInUseErrorNamesHandlerAfterFirstMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), unshared)
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
			var logs kit.Logs
			b := newBench(t, kit.SQLite(t), func(c *retry.Config) { c.Logger = &logs })
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
			kit.Eventually(t, time.Minute, "the row has the name of the handler", func() bool { return row(`handler = 'handler-1'`) })
			for range 3 { // the other handler must be logged only once
				kit.Exec(t, b, `UPDATE once_consumers SET owner = 'elsewhere', `+c.set)
				kit.Eventually(t, time.Minute, "the row is renewed", func() bool { return row(`owner <> 'elsewhere'`) })
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
	var logs kit.Logs
	b := newBench(t, kit.SQLite(t), func(c *retry.Config) { c.Logger = &logs })
	kit.OK(t, kit.Err(b.parked.Register(t.Context(), parkedrows.Consumer{Consumer: consumer, Topic: topic, Owner: "elsewhere"})))
	kit.Exec(t, b, `UPDATE once_consumers SET program = 'example.com/billing'`)
	b.run(func(*message.Message) error { return nil })
	b.Eventually("the consumer is registered", func() bool { return b.Count(`once_consumers WHERE owner <> 'elsewhere'`) == 1 })
	kit.OK(t, b.router.Close())
	if logs.Has("ERROR") {
		t.Errorf("logged %q", logs.Lines())
	}
}

// Retry and poison search the inbox under the consumer name of Subscriber. If dedup used
// another name, an applied message could be given up on after a crash, and a late copy
// of a discarded message would be handled. So another name must be refused.
func TestTrap72InboxWithOtherConsumerNameIsRefused(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for name, want := range map[string]struct{ acked, refused bool }{
			consumer:  {acked: true},
			"billing": {refused: true},
		} {
			b := newBench(t, db, func(c *retry.Config) { c.UnackedWait = time.Millisecond })
			inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.Config, Consumer: name})
			kit.OK(t, err)
			quarantine, err := poison.New(db.DB, poison.Config{Schema: b.Config})
			kit.OK(t, err)
			var handed error
			look := func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					_, handed = h(msg)
					return nil, handed
				}
			}
			ran := false
			b.runWith(func(*message.Message) error {
				ran = true
				return nil
			}, look, quarantine.Middleware, b.retries.Middleware, inbox.Middleware)
			acked := b.transport.deliver(t, message.NewMessage("m1", nil))
			if acked != want.acked || ran != want.acked || errors.Is(handed, dedup.ErrOtherConsumer) != want.refused {
				t.Errorf("dedup consumer %s: handler ran %t, acked %t, error %v", name, ran, acked, handed)
			}
			if n := len(b.entries("")); n != 0 {
				t.Errorf("dedup consumer %s: there are %d rows", name, n)
			}
			kit.OK(t, b.router.Close())
		}
	})
}

var errGateway = errors.New("the card gateway is unreachable")

func classes(c *retry.Config) {
	c.Classes = []retry.Class{
		{
			Match:  func(err error) bool { return errors.Is(err, errGateway) },
			Policy: retry.Policy{Immediate: -1, Delayed: 3, Base: time.Hour, Jitter: -1},
		},
		{Match: func(error) bool { return false }},
	}
}

func TestErrorOfClassUsesPolicyOfClass(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, classes)
		var calls atomic.Int32
		b.run(func(msg *message.Message) error {
			calls.Add(1)
			if msg.UUID == "gateway" {
				return fmt.Errorf("charge: %w", errGateway)
			}
			return errHandler
		})
		b.transport.deliver(t, message.NewMessage("gateway", nil))
		waiting := b.entries(parkedrows.Waiting)
		if len(waiting) != 1 || calls.Load() != 1 {
			t.Fatalf("%d calls, rows %+v", calls.Load(), waiting)
		}
		if in := waiting[0].DueAt.Sub(waiting[0].LastFailedAt); in != time.Hour {
			t.Errorf("due in %v, want an hour", in)
		}
		b.transport.deliver(t, message.NewMessage("other", nil))
		b.Eventually("it is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		if n := calls.Load(); n != 5 {
			t.Errorf("%d calls, want 5", n)
		}
	})
}

// The rounds of a message must be counted together for the errors of all classes.
func TestPolicyOfLatestErrorCountsAllRounds(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			classes(c)
			c.Classes[0].Policy.Base, c.Classes[0].Policy.Max = time.Millisecond, time.Millisecond
		})
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			if calls.Add(1) <= 2 { // two rounds for errors of the class, which is more than the other Policy allows
				return errGateway
			}
			return errHandler
		})
		b.transport.deliver(t, message.NewMessage("m1", nil))
		b.Eventually("it is in quarantine", func() bool { return len(b.entries(parkedrows.Quarantined)) == 1 })
		if e := b.entries(parkedrows.Quarantined)[0]; e.Attempts != 4 || calls.Load() != 4 {
			t.Errorf("%d calls, entry %+v", calls.Load(), e)
		}
	})
}
