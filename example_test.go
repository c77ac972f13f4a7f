package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// An order and its event are committed in one transaction. The forwarder sends the
// event to the consumer, which handles it in another transaction. Here the event is
// published twice with the same id, and the consumer ignores the duplicate.
//
// With PostgreSQL and RabbitMQ the transport is rabbit.NewPublisher and an AMQP
// subscriber; nothing else changes.
func ExampleConsumer() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	_, err := db.ExecContext(ctx, `CREATE TABLE orders (id TEXT); CREATE TABLE payments (order_id TEXT)`)
	must(err)

	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	must(err)

	// The consumer.
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{Schema: tables})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	paid := make(chan string, 2)
	consumer.AddHandler(router, "payments", "orders.placed", transport.Subscriber(),
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id) VALUES (?)`, string(msg.Payload))
			captured := message.NewMessage(msg.UUID+"-captured", msg.Payload)
			return []*message.Message{once.To("payments.captured", captured)}, err
		})
	consumer.AddHandler(router, "shipping", "payments.captured", transport.Subscriber(),
		func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			paid <- string(msg.Payload)
			return nil, nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	// The forwarder.
	fwd, err := forwarder.New(db, transport, forwarder.Config{Schema: tables})
	must(err)
	go func() { must(fwd.Run(ctx)) }()

	// The producer: the order and its event are one transaction.
	box, err := outbox.New(outbox.Config{Schema: tables})
	must(err)
	for range 2 { // the second message is a duplicate and is ignored
		err = box.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ('17')`); err != nil {
				return err
			}
			return events.Publish("orders.placed", message.NewMessage("order-17", []byte("17")))
		}, fwd.Hint)
		must(err)
	}

	fmt.Println("shipping order", <-paid)
	must(router.Close())
	must(fwd.Close())
	var payments int
	must(db.QueryRowContext(ctx, `SELECT COUNT(*) FROM payments`).Scan(&payments))
	fmt.Println("payments:", payments)
	// Output:
	// shipping order 17
	// payments: 1
}

// database returns an empty SQLite database for the duration of an example.
func database() (db *sql.DB, remove func()) {
	dir, err := os.MkdirTemp("", "once-example-")
	must(err)
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	return db, func() { must(errors.Join(db.Close(), os.RemoveAll(dir))) }
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A durable consumer stores a message, acks it, and then handles it: the
// transport does not wait for the handler.
func ExampleConsumer_durable() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	// The GoChannel replaces a broker. Publish returns when the message is
	// acked.
	transport := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})

	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Schema:           tables,
		DurableConsumers: []string{"notifications"},
	})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	answer, handled := make(chan struct{}), make(chan string)
	consumer.AddHandler(router, "notifications", "payments.captured", transport,
		func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			<-answer // a slow provider answers
			handled <- string(msg.Payload)
			return nil, nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	must(transport.Publish("payments.captured", message.NewMessage("order-1-captured", []byte("order-1"))))
	var stored int
	must(db.QueryRowContext(ctx, `SELECT COUNT(*) FROM once_parked`).Scan(&stored))
	fmt.Println("acked, stored:", stored)
	close(answer)
	fmt.Println("handled:", <-handled)
	must(router.Close())
	// Output:
	// acked, stored: 1
	// handled: order-1
}

// Messages of one account are handled in order, even if one fails. Messages of
// other accounts do not wait.
func ExampleConsumer_keyOrder() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	must(err)

	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Schema: tables,
		Retry:  retry.Config{KeyOrder: retry.BlockWhileRetried},
	})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	handled := make(chan string, 4)
	failed := false
	consumer.AddHandler(router, "balances", "account.changed", transport.Subscriber(),
		func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if msg.UUID == "opened" && !failed {
				failed = true
				return nil, retry.After(errors.New("not now"), time.Second)
			}
			handled <- msg.UUID
			return nil, nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	for _, event := range []struct{ id, account string }{
		{"opened", "account-1"}, {"credited", "account-1"}, {"closed", "account-1"}, {"another account", "account-2"},
	} {
		msg := message.NewMessage(event.id, nil)
		outbox.SetOrderingKey(msg, event.account)
		must(transport.Publish("account.changed", msg))
	}
	for range 4 {
		fmt.Println(<-handled)
	}
	must(router.Close())
	// Output:
	// another account
	// opened
	// credited
	// closed
}

// Events of an account arrive in the wrong order and are applied in the right
// order. A second event with an applied version is ignored.
func ExampleConsumer_sequence() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	must(err)

	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Schema:   tables,
		Sequence: &sequence.Config{Policy: sequence.HoldForGap},
	})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	applied := make(chan string, 4)
	consumer.AddHandler(router, "balances", "account.changed", transport.Subscriber(),
		func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			applied <- msg.UUID
			return nil, nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	for _, event := range []struct {
		id      string
		version int64
	}{
		{"credited", 2}, {"opened", 1}, {"opened, from elsewhere", 1}, {"closed", 3},
	} {
		msg := message.NewMessage(event.id, nil)
		outbox.SetAggregate(msg, "account", "17", event.version)
		must(transport.Publish("account.changed", msg))
	}
	for range 3 {
		fmt.Println(<-applied)
	}
	must(router.Close())
	// Output:
	// opened
	// credited
	// closed
}

// An old name of a customer arrives after the newer name. The handler is not called for
// the old name, so the newer name stays. OnStale is called instead, and records the old
// name.
func ExampleConsumer_onStale() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	must(err)

	names := make(chan string, 2)
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Schema: tables,
		Sequence: &sequence.Config{
			OnStale: func(_ context.Context, _ *sql.Tx, gap sequence.Gap, msg *message.Message) error {
				names <- fmt.Sprintf("version %d was %s, after version %d", gap.Version, msg.Payload, gap.Last)
				return nil
			},
		},
	})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	consumer.AddHandler(router, "names", "customer.renamed", transport.Subscriber(),
		func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			names <- "the name is " + string(msg.Payload)
			return nil, nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	rename := func(name string, version int64) {
		msg := message.NewMessage(name, []byte(name))
		outbox.SetAggregate(msg, "customer", "17", version)
		must(transport.Publish("customer.renamed", msg))
		fmt.Println(<-names)
	}
	rename("Grace Hopper", 2)
	rename("Grace Murray", 1)
	must(router.Close())
	// Output:
	// the name is Grace Hopper
	// version 1 was Grace Murray, after version 2
}

// A transaction cannot undo a mail. So the transaction of an order stores only the intent
// to send a mail, as an event. A durable consumer handles the event: it asks the mail
// server whether the mail was sent already, and sends it if it was not. Here the first
// attempt fails after it has sent the mail. The second attempt finds the sent mail.
func ExampleConsumer_intent() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	_, err := db.ExecContext(ctx, `CREATE TABLE mails (order_id TEXT)`)
	must(err)

	sent := map[string]bool{} // the mail server
	recorded := make(chan string)
	publish, stop := service(ctx, db, once.ConsumerConfig{DurableConsumers: []string{"mailer"}},
		func(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber) {
			consumer.AddHandler(router, "mailer", "mails.intended", subscriber,
				func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
					if !sent[msg.UUID] {
						sent[msg.UUID] = true
						fmt.Println("sends the mail for", string(msg.Payload))
						return nil, errors.New("the connection was lost")
					}
					if _, err := tx.ExecContext(ctx, `INSERT INTO mails (order_id) VALUES (?)`, string(msg.Payload)); err != nil {
						return nil, err
					}
					return nil, dedup.AfterCommit(ctx, func() { recorded <- string(msg.Payload) })
				})
		})
	publish("mails.intended", message.NewMessage("order-17-receipt", []byte("order 17")))

	fmt.Println("recorded:", <-recorded)
	stop()
	// Output:
	// sends the mail for order 17
	// recorded: order 17
}

// An order is paid, but there is no stock. The inventory refuses the order with an
// event, which causes the refund. It does not return an error, because an error would
// be retried.
func ExampleConsumer_compensation() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	_, err := db.ExecContext(ctx, `CREATE TABLE stock (pieces INT); INSERT INTO stock VALUES (0); CREATE TABLE refunds (order_id TEXT)`)
	must(err)

	refunded := make(chan string)
	publish, stop := service(ctx, db, once.ConsumerConfig{},
		func(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber) {
			consumer.AddHandler(router, "inventory", "payments.captured", subscriber,
				func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
					taken, err := tx.ExecContext(ctx, `UPDATE stock SET pieces = pieces - 1 WHERE pieces > 0`)
					if err != nil {
						return nil, err
					}
					topic := "stock.reserved"
					if n, err := taken.RowsAffected(); err != nil {
						return nil, err
					} else if n == 0 {
						topic = "stock.refused"
					}
					return []*message.Message{once.To(topic, message.NewMessage(msg.UUID+"-stock", msg.Payload))}, nil
				})
			consumer.AddHandler(router, "refunds", "stock.refused", subscriber,
				func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
					if _, err := tx.ExecContext(ctx, `INSERT INTO refunds (order_id) VALUES (?)`, string(msg.Payload)); err != nil {
						return nil, err
					}
					return nil, dedup.AfterCommit(ctx, func() { refunded <- string(msg.Payload) })
				})
		})
	publish("payments.captured", message.NewMessage("order-17-captured", []byte("order 17")))

	fmt.Println("refunded:", <-refunded)
	stop()
	// Output: refunded: order 17
}

// service calls add, which adds consumers to a router. It runs the router and a forwarder
// with the embedded transport. The returned function publish stores a message in the
// outbox, in a transaction.
func service(ctx context.Context, db *sql.DB, config once.ConsumerConfig,
	add func(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber),
) (publish func(topic string, msg *message.Message), stop func()) {
	config.Schema = schema.Config{Dialect: schema.SQLite}
	config.Logger = watermill.NopLogger{}
	must(schema.Up(ctx, db, config.Schema))
	transport, err := embedded.New(db, embedded.Config{Schema: config.Schema})
	must(err)
	consumer, err := once.NewConsumer(db, config)
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	add(consumer, router, transport.Subscriber())
	go func() { must(router.Run(ctx)) }()
	<-router.Running()
	fwd, err := forwarder.New(db, transport, forwarder.Config{Schema: config.Schema})
	must(err)
	go func() { must(fwd.Run(ctx)) }()
	box, err := outbox.New(outbox.Config{Schema: config.Schema})
	must(err)
	return func(topic string, msg *message.Message) {
			must(box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error {
				return events.Publish(topic, msg)
			}, fwd.Hint))
		}, func() {
			must(router.Close())
			must(fwd.Close())
		}
}
