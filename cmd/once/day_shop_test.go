package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

const placed = "orders.placed"

// order is the payload of a message.
type order struct {
	ID       string `json:"id"`
	Cents    int    `json:"cents"`
	Currency string `json:"currency"`
	Street   string `json:"street,omitempty"`

	tenant string
}

// place commits orders to the outbox.
func place(s *shell, db testkit.Database, orders ...order) {
	s.Helper()
	err := outbox.InTx(s.Context(), db.DB, func(_ *sql.Tx, events message.Publisher) error {
		for _, o := range orders {
			payload, err := json.Marshal(o)
			if err != nil {
				return err
			}
			msg := message.NewMessage(o.ID, payload)
			outbox.SetAggregate(msg, "order", o.ID, 1)
			outbox.SetEventType(msg, "OrderPlaced")
			outbox.SetTenant(msg, o.tenant)
			if err := events.Publish(placed, msg); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
}

// manyOrders returns n orders. Their numbers are consecutive, and the parameter first
// is the lowest number. manyOrders calls the function edit for each order.
func manyOrders(first, n int, edit func(o *order)) (all []order) {
	for i := range n {
		o := order{ID: fmt.Sprintf("order-%04d", first+i), Cents: 1000, Currency: "USD", tenant: "acme"}
		edit(&o)
		all = append(all, o)
	}
	return all
}

// Releases of the payments service, as sets of bits. Each bit is an ability.
const (
	knowsEuros = 1 << iota
	takesAddresses
	takesLongAddresses
)

// charging is a running payments service. It quarantines an order at its first failure,
// because another attempt would not help.
type charging struct {
	db      testkit.Database
	url     string
	release atomic.Int64
	stop    func()
}

func (c *charging) handle(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return nil, err
	}
	release := c.release.Load()
	switch {
	case o.Currency == "EUR" && release&knowsEuros == 0:
		return nil, retry.Permanent(errors.New("no exchange rate for EUR"))
	case o.Street != "" && release&takesAddresses == 0:
		return nil, retry.Permanent(errors.New("the billing address has an unknown format"))
	case len(o.Street) > 40 && release&takesLongAddresses == 0:
		return nil, retry.Permanent(errors.New("the billing address has more than 40 characters"))
	case o.Cents < 0:
		return nil, retry.Permanent(errors.New("the amount is negative"))
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO charges (order_id, cents) VALUES ($1, $2)`, o.ID, o.Cents)
	return nil, err
}

// start runs the service until stop is called or the test ends.
func (c *charging) start(t *testing.T) {
	t.Helper()
	config := amqp.NewDurablePubSubConfig(c.url, amqp.GenerateQueueNameTopicNameWithSuffix("payments"))
	config.Marshaler = rabbit.Marshaler{}
	config.Queue.Arguments = amqp091.Table{"x-queue-type": "quorum"}
	subscriber, err1 := rabbit.NewSubscriber(config, rabbit.SubscriberConfig{Logger: watermill.NopLogger{}})
	consumer, err2 := once.NewConsumer(c.db.DB, once.ConsumerConfig{
		Logger: watermill.NopLogger{}, Retry: retry.Config{PollInterval: 20 * time.Millisecond},
	})
	router, err3 := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	consumer.AddHandler(router, "payments", placed, subscriber, c.handle)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- once.Run(ctx, time.Minute, router, subscriber) }()
	var stopped atomic.Bool
	c.stop = func() {
		if !stopped.Swap(true) {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(c.stop)
	select {
	case <-router.Running():
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
}

// charges returns the number of orders that were charged.
func (c *charging) charges(t *testing.T) (n int) {
	t.Helper()
	if err := c.db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM charges`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// newShop returns the shells of two services, and a payments service that does not run
// yet. Each service has its own database, without tables.
func newShop(t *testing.T) (orders, payments *shell, ordersDB testkit.Database, service *charging) {
	t.Helper()
	ordersDB = testkit.EmptyPostgres(t)
	service = &charging{db: testkit.EmptyPostgres(t), url: testkit.Rabbit(t).URL}
	if _, err := service.db.ExecContext(t.Context(), `CREATE TABLE charges (order_id text PRIMARY KEY, cents integer NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	orders = &shell{T: t, env: map[string]string{
		"PROMPT": "orders", "ONCE_DSN": ordersDB.DSN, "ONCE_ACTOR": "ann", "ONCE_AMQP_URL": service.url, "ONCE_CONSUMER_DSN": service.db.DSN,
	}}
	payments = &shell{T: t, env: map[string]string{"PROMPT": "payments", "ONCE_DSN": service.db.DSN, "ONCE_ACTOR": "ann"}}
	return orders, payments, ordersDB, service
}

// loseMessage simulates a mistake at the broker: a message is sent while payments does
// not run, and then the queue of payments is purged.
func (c *charging) loseMessage(t *testing.T, send func()) {
	t.Helper()
	c.stop()
	send()
	conn, err := amqp091.Dial(c.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := channel.QueuePurge(placed+"_payments", false); err != nil || n != 1 {
		t.Fatalf("%d messages were purged, %v", n, err)
	}
	c.start(t)
}

// nextRelease builds the command with one more migration, like a later release.
func nextRelease(t *testing.T) (path string) {
	t.Helper()
	return buildWith(t, fmt.Sprintf("%04d_note.sql", schema.Version()+1),
		fmt.Sprintf("-- compatible_from: %d\nALTER TABLE {audit} ADD COLUMN note text;\n", schema.Version()))
}
