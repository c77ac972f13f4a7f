package forwarder_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// printer is a publisher that prints messages.
type printer struct{ printed chan struct{} }

func (p printer) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		fmt.Printf("%s: %s\n", topic, msg.Payload)
		p.printed <- struct{}{}
	}
	return nil
}

func (p printer) Close() error { return nil }

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "db")+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ctx := context.Background()
	tables := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(ctx, db, tables); err != nil {
		log.Fatal(err)
	}

	publisher := printer{make(chan struct{})}
	fwd, err := forwarder.New(db, publisher, forwarder.Config{Schema: tables, Workers: 1})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := fwd.Run(ctx); err != nil {
			log.Print(err)
		}
	}()
	<-fwd.Running()

	box, err := outbox.New(outbox.Config{Schema: tables})
	if err != nil {
		log.Fatal(err)
	}
	order := func(id string, fails error) error {
		return box.InTx(ctx, db, func(tx *sql.Tx, events message.Publisher) error {
			// here you would write your business data through tx
			if err := events.Publish("orders.placed", message.NewMessage(id, []byte(id))); err != nil {
				return err
			}
			return fails
		}, fwd.Hint)
	}
	fmt.Println(order("order-1", nil))
	<-publisher.printed
	fmt.Println(order("order-2", fmt.Errorf("out of stock")))
	fmt.Println(order("order-3", nil))
	<-publisher.printed

	if err := fwd.Close(); err != nil {
		log.Fatal(err)
	}

	// Unordered output:
	// <nil>
	// orders.placed: order-1
	// out of stock
	// <nil>
	// orders.placed: order-3
}
