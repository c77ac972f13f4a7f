package embedded_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

const topic = "orders.placed"

func newTransport(t *testing.T, db kit.Database) (*embedded.Transport, schema.Config) {
	t.Helper()
	config := kit.Tables(t, db)
	transport, err := embedded.New(db.DB, embedded.Config{Schema: config})
	kit.OK(t, err)
	return transport, config
}

func rows(t *testing.T, db kit.Database) (n int) {
	t.Helper()
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_parked`).Scan(&n))
	return n
}

// subscribe subscribes a consumer through retry's Subscriber.
func subscribe(
	t *testing.T, db kit.Database, config schema.Config, transport *embedded.Transport, consumer string,
) <-chan *message.Message {
	t.Helper()
	// The poll interval is so long that messages arrive in time only if the transport
	// wakes the subscriber.
	retries, err := retry.New(db.DB, retry.Config{Schema: config, PollInterval: time.Hour})
	kit.OK(t, err)
	sub := retries.Subscriber(consumer, transport.Subscriber())
	messages, err := sub.Subscribe(t.Context(), topic)
	kit.OK(t, err)
	t.Cleanup(func() {
		kit.Check(t, sub.Close())
	})
	return messages
}

// Trap 66. If no consumer is registered, Publish refuses the message. A publisher that
// returned nil would lose it.
func TestTrap66MessageWithoutConsumerIsRefused(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		transport, _ := newTransport(t, db)
		err := transport.Publish(topic, message.NewMessage("m1", nil))
		var refused interface{ Refused() bool } // the forwarder checks for this interface
		if !errors.As(err, &refused) || !refused.Refused() || !strings.Contains(err.Error(), topic) {
			t.Fatalf("got %v, want a refusal that names the topic", err)
		}
		if rows(t, db) != 0 {
			t.Fatal("a refused message is stored")
		}
	})
}

func TestEveryConsumerOfProcessReceivesEveryMessageAtOnce(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		transport, config := newTransport(t, db)
		subscriptions := map[string]<-chan *message.Message{
			"payments":  subscribe(t, db, config, transport, "payments"),
			"inventory": subscribe(t, db, config, transport, "inventory"),
		}
		sent := message.NewMessage("m1", []byte("a\x00\xff"))
		sent.Metadata["k"] = "v"
		kit.OK(t, transport.Publish(topic, sent))
		for consumer, messages := range subscriptions {
			select {
			case got := <-messages:
				if !got.Equals(sent) {
					t.Errorf("%s got %+v", consumer, got)
				}
				got.Ack()
			case <-time.After(time.Minute):
				t.Fatalf("%s was not woken", consumer)
			}
		}
		kit.Eventually(t, time.Minute, "the rows are gone", func() bool { return rows(t, db) == 0 })
	})
}

// Trap 66. If Publish returns nil, the rows are committed. If it returns an error, the
// rows may be missing.
func TestTrap66NilMeansCommitted(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		transport, config := newTransport(t, db)
		messages := subscribe(t, db, config, transport, "payments")
		kit.OK(t, transport.Publish(topic, message.NewMessage("m1", nil), message.NewMessage("m2", nil)))
		if rows(t, db) != 2 {
			t.Fatalf("%d rows", rows(t, db))
		}
		for range 2 {
			(<-messages).Ack()
		}
		kit.Exec(t, db, `ALTER TABLE once_parked RENAME TO elsewhere`)
		if err := transport.Publish(topic, message.NewMessage("m3", nil)); err == nil {
			t.Error("Publish returned nil, but nothing was stored")
		}
		kit.Exec(t, db, `ALTER TABLE elsewhere RENAME TO once_parked`)
	})
}

func TestConsumerStaysRegisteredAfterItsSubscription(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		transport, config := newTransport(t, db)
		retries, err := retry.New(db.DB, retry.Config{Schema: config})
		kit.OK(t, err)
		first := retries.Subscriber("payments", transport.Subscriber())
		kit.OK(t, kit.Err(first.Subscribe(t.Context(), topic)))
		kit.OK(t, first.Close())
		kit.OK(t, transport.Publish(topic, message.NewMessage("m1", nil)))
		got := <-subscribe(t, db, config, transport, "payments")
		if got.UUID != "m1" {
			t.Fatalf("got %q", got.UUID)
		}
		got.Ack()
	})
}

// Operators see the limit of the configuration, as with a broker.
func TestConsumerIsRegisteredWithItsLimit(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		transport, config := newTransport(t, db)
		retries, err := retry.New(db.DB, retry.Config{Schema: config, Limits: retry.Limits{PerSecond: 20, Burst: 3}})
		kit.OK(t, err)
		sub := retries.Subscriber("payments", transport.Subscriber())
		kit.OK(t, kit.Err(sub.Subscribe(t.Context(), topic)))
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_consumer_instances WHERE per_second = 20 AND burst = 3`)
		kit.OK(t, sub.Close())
	})
}

func TestPublishAndSubscribeFailAfterClose(t *testing.T) {
	t.Parallel()
	transport, _ := newTransport(t, kit.SQLite(t))
	sub := transport.Subscriber()
	for range 2 {
		kit.OK(t, transport.Close())
		kit.OK(t, sub.Close())
	}
	var unavailable interface{ Unavailable() bool }
	if err := transport.Publish(topic, message.NewMessage("m1", nil)); !errors.As(err, &unavailable) {
		t.Errorf("publish: %v", err)
	}
	ctx := parkedrows.WithSubscription(t.Context(), parkedrows.Subscription{Consumer: "payments"})
	if _, err := sub.Subscribe(ctx, topic); !errors.As(err, &unavailable) {
		t.Errorf("subscribe: %v", err)
	}
	if err := transport.Publish(topic); err != nil {
		t.Errorf("publish without messages: %v", err)
	}
}

func TestSubscribeWithoutRetryFails(t *testing.T) {
	t.Parallel()
	transport, _ := newTransport(t, kit.SQLite(t))
	if _, err := transport.Subscriber().Subscribe(t.Context(), topic); err == nil || !strings.Contains(err.Error(), "retry's Subscriber") {
		t.Fatalf("error %v", err)
	}
}

func TestConfigErrorNamesField(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	if _, err := embedded.New(nil, embedded.Config{}); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Errorf("error %v", err)
	}
	_, err := embedded.New(db.DB, embedded.Config{Schema: schema.Config{Prefix: "a b"}})
	if err == nil || !strings.Contains(err.Error(), "Prefix") {
		t.Errorf("error %v", err)
	}
}

// The first registration of a consumer must contain its owner. Otherwise an operator
// would read that the consumer never ran with retry's Subscriber.
func TestFirstRegistrationHasOwner(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	transport, config := newTransport(t, db)
	for _, query := range []string{
		`CREATE TABLE first_owner (owner text NOT NULL)`,
		`CREATE TRIGGER first_owner AFTER INSERT ON once_consumers BEGIN INSERT INTO first_owner VALUES (NEW.owner); END`,
	} {
		kit.Exec(t, db, query)
	}
	subscribe(t, db, config, transport, "payments")
	owner := kit.One[string](t, db, `SELECT owner FROM first_owner`)
	if owner == "" {
		t.Error("the consumer is registered without an owner")
	}
}
