package once_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/schema"
)

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
