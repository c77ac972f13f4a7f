package once_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// Messages of one account are handled in order, even if one fails. Messages of
// other accounts do not wait.
func ExampleConsumer_keyOrder() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	must(err)

	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Schema: tables,
		Retry:  retry.Config{KeyOrder: retry.BlockWhileRetried},
	})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	handled := make(chan string, 4)
	failed := false
	consumer.AddHandler(router, "balances", "account.changed", transport.Subscriber(),
		func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if msg.UUID == "opened" && !failed {
				failed = true
				return nil, retry.After(errors.New("not now"), time.Second)
			}
			handled <- msg.UUID
			return nil, nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	for _, event := range []struct{ id, account string }{
		{"opened", "account-1"}, {"credited", "account-1"}, {"closed", "account-1"}, {"another account", "account-2"},
	} {
		msg := message.NewMessage(event.id, nil)
		outbox.SetOrderingKey(msg, event.account)
		must(transport.Publish("account.changed", msg))
	}
	for range 4 {
		fmt.Println(<-handled)
	}
	must(router.Close())
	// Output:
	// another account
	// opened
	// credited
	// closed
}
