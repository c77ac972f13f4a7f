package forwarder_test

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

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// refusing is a publisher whose broker refuses every message.
type refusing struct{ attempts chan string }

func (r refusing) Publish(topic string, _ ...*message.Message) error {
	r.attempts <- topic
	return errors.New("the queue is full")
}

func (r refusing) Close() error { return nil }

// A payment is tried more often than a mail.
func ExamplePolicy() {
	ctx := context.Background()
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
	tables := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(ctx, db, tables); err != nil {
		log.Fatal(err)
	}
	box, err := outbox.New(outbox.Config{Schema: tables})
	if err != nil {
		log.Fatal(err)
	}
	if err := box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error {
		return errors.Join(
			events.Publish("payments", message.NewMessage("payment-1", nil)),
			events.Publish("mails", message.NewMessage("mail-1", nil)),
		)
	}); err != nil {
		log.Fatal(err)
	}

	publisher := refusing{make(chan string, 8)}
	fwd, err := forwarder.New(db, publisher, forwarder.Config{
		Schema: tables, Logger: watermill.NopLogger{},
		Classify: func(error) forwarder.Outcome { return forwarder.Refused },
		Policies: map[string]forwarder.Policy{
			"payments": {
				MaxAttempts: 5,
				Backoff:     func(int) time.Duration { return time.Millisecond },
				AfterDead:   forwarder.BlockKey, // the later payments of a key wait for an operator
			},
			"mails": {MaxAttempts: 1},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		if err := fwd.Run(ctx); err != nil {
			log.Print(err)
		}
	}()
	attempts := map[string]int{}
	for range 6 {
		attempts[<-publisher.attempts]++
	}
	if err := fwd.Close(); err != nil { // records the outcomes
		log.Fatal(err)
	}
	stats, err := fwd.Stats(ctx)
	fmt.Println(attempts, "dead:", stats.Dead, err)
	// Output: map[mails:1 payments:5] dead: 2 <nil>
}
