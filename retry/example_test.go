package retry_test

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
	_ "modernc.org/sqlite"

	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// A failing handler is called again, first immediately, and then from the consumer's
// database, after the transport's copy was acked.
func ExampleRetries_Middleware() {
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

	retries, err := retry.New(db, retry.Config{
		Schema:       tables,
		Policy:       retry.Policy{Immediate: 1, Delayed: 3, Base: 100 * time.Millisecond},
		PollInterval: 10 * time.Millisecond,
	})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	router.AddMiddleware(retries.Middleware)

	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	must(err)
	handled := make(chan struct{})
	calls := 0
	router.AddConsumerHandler("payments", "orders.placed", retries.Subscriber("payments", transport.Subscriber()),
		func(msg *message.Message) error {
			if calls++; calls < 4 {
				fmt.Println("call", calls, "fails")
				return errors.New("the provider does not answer")
			}
			fmt.Println("call", calls, "handles", msg.UUID)
			close(handled)
			return nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	must(transport.Publish("orders.placed", message.NewMessage("order-17", nil)))
	<-handled
	must(router.Close())
	// Output:
	// call 1 fails
	// call 2 fails
	// call 3 fails
	// call 4 handles order-17
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
