package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// drain receives and acks n messages.
func drain(t *testing.T, consumer string, messages <-chan *message.Message, n int) {
	t.Helper()
	for got := range n {
		select {
		case msg := <-messages:
			msg.Ack()
		case <-time.After(time.Minute):
			t.Fatalf("%s received %d of %d messages", consumer, got, n)
		}
	}
}

func publish(t *testing.T, transport *embedded.Transport, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		kit.OK(t, transport.Publish(topic, message.NewMessage(fmt.Sprintf("m%d", n), nil)))
	}
}

// restarted returns the transport of a process that has just started.
func restarted(t *testing.T, db kit.Database, config schema.Config) *embedded.Transport {
	t.Helper()
	transport, err := embedded.New(db.DB, embedded.Config{Schema: config, Logger: kit.Logger(t)})
	kit.OK(t, err)
	return transport
}

// register subscribes a consumer, and then closes the subscription.
func register(t *testing.T, db kit.Database, config schema.Config, transport *embedded.Transport, consumer string) {
	t.Helper()
	retries, err := retry.New(db.DB, retry.Config{Schema: config})
	kit.OK(t, err)
	sub := retries.Subscriber(consumer, transport.Subscriber())
	kit.OK(t, kit.Err(sub.Subscribe(t.Context(), topic)))
	kit.OK(t, sub.Close())
}

// Trap 84: After a restart, a backlog is published before either of the two consumers
// runs again. Both consumers receive the whole backlog.
func TestConsumerThatRestartsLateLosesNothing(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		before, config := newTransport(t, db)
		for _, consumer := range []string{"payments", "inventory"} {
			register(t, db, config, before, consumer)
		}
		kit.OK(t, before.Close())

		transport := restarted(t, db, config)
		publish(t, transport, 0, 10) // no consumer is running yet
		payments := subscribe(t, db, config, transport, "payments")
		publish(t, transport, 10, 20)
		inventory := subscribe(t, db, config, transport, "inventory")
		publish(t, transport, 20, 30)
		drain(t, "payments", payments, 30)
		drain(t, "inventory", inventory, 30)
	})
}

// age changes the time at which a consumer last ran. The argument ago is an interval,
// such as "1 hour".
func age(t *testing.T, db kit.Database, consumer, ago string) {
	t.Helper()
	query := `UPDATE once_consumers SET seen_at = now() - interval '` + ago + `' WHERE consumer = $1`
	if db.Dialect == "sqlite" {
		query = `UPDATE once_consumers SET seen_at = unixepoch('now', '-` + ago + `') * 1000 WHERE consumer = $1`
	}
	kit.Exec(t, db, query, consumer)
}

// If a consumer never runs again, its messages accumulate. This is logged as an error,
// and Forget deletes them.
func TestAbsentConsumerIsLoggedAndCanBeForgotten(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		first, config := newTransport(t, db)
		register(t, db, config, first, "payments")
		register(t, db, config, first, "retired")

		var logs kit.Logs
		transport, err := embedded.New(db.DB, embedded.Config{Schema: config, Logger: &logs})
		kit.OK(t, err)
		publish(t, transport, 0, 2)
		if lines := logs.Lines(); len(lines) != 0 {
			t.Fatalf("both ran a moment ago, but logged %q", lines)
		}
		age(t, db, "retired", "3 hours")
		publish(t, transport, 2, 5)
		const want = `consumer "retired" of topic "orders.placed" was last seen 3h0m0s ago: ` +
			`start it, or end its registration with Transport.Forget`
		if logs.Count("ERROR Registered consumer is not running, messages pile up for it", want) != 1 || len(logs.Lines()) != 1 {
			t.Errorf("want one line with %q, logged %q", want, logs.Lines())
		}

		// A running consumer cannot be forgotten.
		if _, err := transport.Forget(t.Context(), "payments", topic); !errors.Is(err, embedded.ErrRunning) {
			t.Errorf("Forget of a running consumer: %v", err)
		}
		deleted, err := transport.Forget(t.Context(), "retired", topic)
		if err != nil || deleted != 5 {
			t.Errorf("%d messages deleted, want 5: %v", deleted, err)
		}
		publish(t, transport, 5, 6)
		if n := rows(t, db); n != 6 {
			t.Errorf("%d rows, want the 6 of the other consumer", n)
		}
		if deleted, err := transport.Forget(t.Context(), "retired", topic); err != nil || deleted != 0 {
			t.Errorf("second Forget: %d, %v", deleted, err)
		}
		drain(t, "payments", subscribe(t, db, config, transport, "payments"), 6)
	})
}

func TestConsumerOfAnotherProcessReceivesMessages(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		transport, config := newTransport(t, db)
		messages := subscribe(t, db, config, transport, "payments")
		publish(t, restarted(t, db, config), 0, 3)
		otherProcess := restarted(t, db, config) // does not wake the consumer
		publish(t, otherProcess, 3, 5)
		publish(t, transport, 5, 6) // wakes the consumer
		drain(t, "payments", messages, 6)
	})
}

// A consumer has subscribed in an earlier process, and a later process publishes
// messages. The consumer also keeps the order of the keys of these messages.
func TestKeyOrderOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		transport, config := newTransport(t, db)
		retries, err := retry.New(db.DB, retry.Config{Schema: config, KeyOrder: retry.BlockWhileRetried})
		kit.OK(t, err)
		sub := retries.Subscriber("payments", transport.Subscriber())
		kit.OK(t, kit.Err(sub.Subscribe(t.Context(), topic)))
		kit.OK(t, sub.Close())
		for _, id := range []string{"m1", "m2"} {
			msg := message.NewMessage(id, nil)
			msg.Metadata.Set("once_ordering_key", "order-1")
			kit.OK(t, restarted(t, db, config).Publish(topic, msg))
		}
		var held int
		query := `SELECT COUNT(*) FROM once_parked WHERE state = 'held' AND message_id = 'm2'`
		if err := db.QueryRowContext(t.Context(), query).Scan(&held); err != nil || held != 1 {
			t.Errorf("the second message of the key does not wait: %d, %v", held, err)
		}
	})
}

// If the registration fails, Subscribe fails. Otherwise messages for the consumer would
// be lost.
func TestSubscribeFailsWithoutRegistration(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		transport, config := newTransport(t, db)
		kit.Exec(t, db, `ALTER TABLE once_consumers RENAME TO elsewhere`)
		retries, err := retry.New(db.DB, retry.Config{Schema: config})
		kit.OK(t, err)
		sub := retries.Subscriber("payments", transport.Subscriber())
		_, err = sub.Subscribe(t.Context(), topic)
		const want = `embedded: register consumer "payments" for topic "orders.placed": `
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want one that begins with %s", err, want)
		}
		kit.Check(t, sub.Close())
	})
}

// Subscribe returns no error if its context has ended, because a service that stops
// while it starts has not failed. If tables are missing, the error of Subscribe names
// the remedy.
func TestSubscribeWithEndedContextAndWithoutTables(t *testing.T) {
	t.Parallel()
	kit.EachEmptyDatabase(t, func(t *testing.T, db kit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		transport := restarted(t, db, config)
		retries, err := retry.New(db.DB, retry.Config{Schema: config})
		kit.OK(t, err)
		sub := retries.Subscriber("payments", transport.Subscriber())
		_, err = sub.Subscribe(t.Context(), topic)
		if !errors.Is(err, schema.ErrMissing) || !strings.Contains(err.Error(), "run schema.Up, or apply schema.SQL") {
			t.Errorf("Subscribe without tables: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		messages, err := sub.Subscribe(ctx, topic)
		if err != nil {
			t.Fatalf("Subscribe with an ended context: %v", err)
		}
		if _, open := <-messages; open {
			t.Error("a message was received")
		}
		kit.Check(t, sub.Close())
	})
}
