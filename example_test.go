package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
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
