package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

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
