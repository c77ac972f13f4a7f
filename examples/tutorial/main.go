// Command tutorial is the service of docs/tutorial.md. "tutorial place ID" stores an order and its event in one
// transaction. "tutorial work" forwards the events, and pays each order. It needs no servers.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

var tables = schema.Config{Dialect: schema.SQLite}

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	db, err := sql.Open("sqlite", "file:shop.db?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return err
	}
	if err := schema.Up(ctx, db, tables); err != nil {
		return err
	}
	const ours = `CREATE TABLE IF NOT EXISTS orders (id TEXT); CREATE TABLE IF NOT EXISTS payments (order_id TEXT)`
	if _, err := db.ExecContext(ctx, ours); err != nil {
		return err
	}
	switch {
	case len(args) == 2 && args[0] == "place":
		return place(ctx, db, args[1])
	case len(args) == 1 && args[0] == "work":
		return work(ctx, db)
	}
	return errors.New("usage: tutorial place ID, or tutorial work")
}

// place stores an order and its event. The id of the event is derived from that of the order, so that a second event of the
// same order is a copy.
func place(ctx context.Context, db *sql.DB, order string) error {
	events, err := outbox.New(outbox.Config{Schema: tables})
	if err != nil {
		return err
	}
	err = events.InTx(ctx, db, func(tx *sql.Tx, publisher message.Publisher) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, order); err != nil {
			return err
		}
		return publisher.Publish("orders.placed", message.NewMessage(order+"-placed", []byte(order)))
	})
	if err == nil {
		fmt.Println("placed", order)
	}
	return err
}

// work forwards and handles events until ctx ends. The bank is down if the environment says so.
func work(ctx context.Context, db *sql.DB) error {
	transport, err1 := embedded.New(db, embedded.Config{Schema: tables})
	fwd, err2 := forwarder.New(db, transport, forwarder.Config{Schema: tables, KeepSent: time.Hour})
	consumer, err3 := once.NewConsumer(db, once.ConsumerConfig{
		Schema: tables,
		Retry:  retry.Config{Policy: retry.Policy{Immediate: 1, Delayed: 1, Base: time.Second}}, // four attempts: a tutorial is short
	})
	router, err4 := message.NewRouter(message.RouterConfig{}, nil)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	consumer.AddHandler(router, "payments", "orders.placed", transport.Subscriber(),
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if os.Getenv("BANK") == "down" {
				return nil, errors.New("the bank is down")
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO payments (order_id) VALUES ($1)`, string(msg.Payload)); err != nil {
				return nil, err
			}
			fmt.Println("paying", string(msg.Payload))
			return nil, nil
		})
	return once.Run(ctx, 0, router, fwd, db)
}
