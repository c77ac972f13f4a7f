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
	must(err)
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "db")+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	must(err)
	defer db.Close()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	box, err := outbox.New(outbox.Config{Schema: tables})
	must(err)
	must(box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error {
		return errors.Join(
			events.Publish("payments", message.NewMessage("payment-1", nil)),
			events.Publish("mails", message.NewMessage("mail-1", nil)),
		)
	}))

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
	must(err)
	go func() { must(fwd.Run(ctx)) }()
	attempts := map[string]int{}
	for range 6 {
		attempts[<-publisher.attempts]++
	}
	must(fwd.Close()) // records the outcomes
	fmt.Println(attempts)
	// Output: map[mails:1 payments:5]
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
