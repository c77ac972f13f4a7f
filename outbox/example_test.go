package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// A message is stored if, and only if, its transaction commits. A message that could
// never be sent is refused before it is stored.
func ExampleOutbox_InTx() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "db")+"?_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	ctx := context.Background()
	tables := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(ctx, db, tables); err != nil {
		log.Fatal(err)
	}
	box, err := outbox.New(outbox.Config{Schema: tables})
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error {
		msg := message.NewMessage("1", []byte(`{"order":42}`))
		outbox.SetOrderingKey(msg, "customer-7")
		return events.Publish("orders.placed", msg)
	}))
	fmt.Println(box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error {
		if err := events.Publish("orders.placed", message.NewMessage("2", nil)); err != nil {
			return err
		}
		return errors.New("out of stock")
	}))
	fmt.Println(box.InTx(ctx, db, func(_ *sql.Tx, events message.Publisher) error {
		msg := message.NewMessage("3", nil)
		outbox.SetOrderingKey(msg, "customer-7")
		outbox.SetDueAt(msg, time.Now().Add(time.Hour))
		return events.Publish("orders.placed", msg)
	}))
	var stored int
	err = db.QueryRow(`SELECT COUNT(*) FROM once_outbox`).Scan(&stored)
	fmt.Println(stored, err)

	// Output:
	// <nil>
	// out of stock
	// outbox: message 0 (id "3"): metadata "once_due_at" contradicts the ordering key: a delayed message cannot keep its place
	// 1 <nil>
}
