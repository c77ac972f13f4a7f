package quarantine_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// A message whose handler always fails goes to the quarantine. After the cause is
// repaired, the message is replayed to the consumer that failed.
func ExampleEntries_Replay() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "once-example-")
	must(err)
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
	must(err)
	defer db.Close()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))

	quarantined := make(chan poison.Entry, 1)
	store, err := poison.New(db, poison.Config{
		Schema:       tables,
		OnQuarantine: func(e poison.Entry) { quarantined <- e },
	})
	must(err)
	entries, err := quarantine.New(db, operate.Config{Schema: tables})
	must(err)
	retries, err := retry.New(db, retry.Config{Schema: tables, PollInterval: 10 * time.Millisecond})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	router.AddMiddleware(store.Middleware, retries.Middleware)

	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	must(err)
	var ratesLoaded atomic.Bool
	handled := make(chan string, 1)
	router.AddConsumerHandler("payments", "orders.placed", retries.Subscriber("payments", transport.Subscriber()),
		func(msg *message.Message) error {
			if !ratesLoaded.Load() {
				return retry.Permanent(errors.New("there is no rate for this currency"))
			}
			handled <- msg.UUID
			return nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	must(transport.Publish("orders.placed", message.NewMessage("order-17", nil)))
	entry := <-quarantined
	fmt.Println("in quarantine:", entry.MessageID, "of", entry.Consumer, "because it is", entry.Reason)

	ratesLoaded.Store(true)
	must(entries.Replay(ctx, operate.Act{Actor: "ada", Why: "the rates are loaded"}, entry.ID))
	fmt.Println("handled:", <-handled)
	must(router.Close())
	// Output:
	// in quarantine: order-17 of payments because it is permanent
	// handled: order-17
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
