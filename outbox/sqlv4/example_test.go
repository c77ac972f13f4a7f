package sqlv4_test

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/sqlv4"
	"github.com/watermill-once/once/schema"
)

// The Publisher of watermill-sql v4 stores a message in the outbox, in the transaction of
// the service. The schema adapter is the only difference to a service without the outbox.
func ExampleNewSchemaAdapter() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	db, err := stdsql.Open("sqlite", "file:"+filepath.Join(dir, "db")+"?_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	tables := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(context.Background(), db, tables); err != nil {
		log.Fatal(err)
	}
	box, err := outbox.New(outbox.Config{Schema: tables})
	if err != nil {
		log.Fatal(err)
	}

	tx, err := db.Begin()
	if err != nil {
		log.Fatal(err)
	}
	publisher, err := sql.NewPublisher(sql.TxFromStdSQL(tx), sql.PublisherConfig{
		SchemaAdapter: sqlv4.NewSchemaAdapter(box),
	}, nil)
	if err != nil {
		log.Fatal(err)
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
