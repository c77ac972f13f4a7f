package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// The Publisher of watermill-sql stores a message in the outbox, in the transaction of
// the service. The schema adapter is the only difference to a service without the outbox.
func ExampleOutbox_SchemaAdapter() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "db")+"?_txlock=immediate")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	tables := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(context.Background(), db, tables); err != nil {
		panic(err)
	}
	box, err := outbox.New(outbox.Config{Schema: tables})
	if err != nil {
		panic(err)
	}

	tx, err := db.Begin()
	if err != nil {
		panic(err)
	}
	publisher, err := wsql.NewPublisher(tx, wsql.PublisherConfig{
		SchemaAdapter: box.SchemaAdapter(),
	}, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(publisher.Publish("orders.placed", message.NewMessage("1", []byte(`{"order":42}`))))
	err = publisher.Publish("orders.placed", message.NewMessage("", nil))
	fmt.Println(errors.Is(err, outbox.ErrInvalid))
	fmt.Println(tx.Commit())

	var topic, id string
	err = db.QueryRow(`SELECT topic, message_id FROM once_outbox`).Scan(&topic, &id)
	fmt.Println(topic, id, err)
	// Output:
	// <nil>
	// true
	// <nil>
	// orders.placed 1 <nil>
}
