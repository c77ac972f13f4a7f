package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func main() {
	ctx, tables := context.Background(), schema.Config{Dialect: schema.SQLite}
	db := must(sql.Open("sqlite", "file:shop.db?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"))
	must(0, schema.Up(ctx, db, tables)) // creates the tables of the library
	must(db.Exec(`CREATE TABLE IF NOT EXISTS orders (id TEXT); CREATE TABLE IF NOT EXISTS payments (id TEXT)`))
	transport := must(embedded.New(db, embedded.Config{Schema: tables}))
	consumer := must(once.NewConsumer(db, once.ConsumerConfig{Schema: tables}))
	router := must(message.NewRouter(message.RouterConfig{}, nil))
	consumer.AddHandler(router, "payments", "orders.placed", transport.Subscriber(),
		func(ctx context.Context, tx *sql.Tx, order *message.Message) ([]*message.Message, error) {
			fmt.Println("paying", string(order.Payload))
			_, err := tx.ExecContext(ctx, `INSERT INTO payments VALUES ($1)`, string(order.Payload))
			return nil, err // an error rolls back, and the message is tried again later
		})
	must(0, must(outbox.New(outbox.Config{Schema: tables})).InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
		must(tx.Exec(`INSERT INTO orders VALUES ('order-1')`))
		return events.Publish("orders.placed", outbox.NewMessage([]byte("order-1")))
	}))
	must(0, once.Run(ctx, 0, router, must(forwarder.New(db, transport, forwarder.Config{Schema: tables}))))
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
