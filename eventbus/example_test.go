package eventbus_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// One publisher, made when the service starts, stores each event in the transaction of
// its context. It is the publisher for cqrs.NewEventBusWithConfig, whose Publish passes
// the context on.
func ExamplePublisher() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "once-example-")
	must(err)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+"?_txlock=immediate")
	must(err)
	defer func() { must(errors.Join(db.Close(), os.RemoveAll(dir))) }()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	box, err := outbox.New(outbox.Config{Schema: tables})
	must(err)

	events := eventbus.Publisher(box.Publisher)
	publish := func(ctx context.Context, payload string) error {
		msg := message.NewMessage(outbox.NewID(), []byte(payload))
		msg.SetContext(ctx)
		return events.Publish("orders.placed", msg)
	}

	tx, err := db.BeginTx(ctx, nil)
	must(err)
	must(publish(eventbus.WithTx(ctx, tx), "17"))
	must(tx.Commit())

	tx, err = db.BeginTx(ctx, nil)
	must(err)
	must(publish(eventbus.WithTx(ctx, tx), "18"))
	must(tx.Rollback())

	fmt.Println("refused:", errors.Is(publish(ctx, "19"), eventbus.ErrNoTransaction))
	var stored string
	must(db.QueryRowContext(ctx, `SELECT group_concat(CAST(payload AS TEXT)) FROM once_outbox`).Scan(&stored))
	fmt.Println("stored:", stored)
	// Output:
	// refused: true
	// stored: 17
}

// plain is a marshaler, such as cqrs.JSONMarshaler.
type plain struct{}

func (plain) Marshal(v any) (*message.Message, error) {
	msg := message.NewMessage(outbox.NewID(), nil)
	msg.Metadata.Set("name", plain{}.Name(v))
	return msg, nil
}

func (plain) Unmarshal(*message.Message, any) error       { return nil }
func (plain) Name(v any) string                           { return fmt.Sprintf("%T", v) }
func (plain) NameFromMessage(msg *message.Message) string { return msg.Metadata.Get("name") }

type (
	OrderPlaced    struct{}
	OrderCancelled struct{}
)

// A message with an unknown event goes to the quarantine without retries.
func ExampleKnownEvents() {
	handle := eventbus.KnownEvents(plain{}, OrderPlaced{})(func(*message.Message) ([]*message.Message, error) {
		fmt.Println("handled")
		return nil, nil
	})
	for _, event := range []any{OrderPlaced{}, OrderCancelled{}} {
		msg, err := plain{}.Marshal(event)
		must(err)
		if _, err := handle(msg); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// handled
	// eventbus: no handler for event "eventbus_test.OrderCancelled", only for ["eventbus_test.OrderPlaced"]
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
