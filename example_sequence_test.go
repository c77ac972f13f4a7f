package once_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
	"github.com/watermill-once/once/sequence"
)

// Events of an account arrive in the wrong order and are applied in the right
// order. A second event with an applied version is ignored.
func ExampleConsumer_sequence() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	must(err)

	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Schema:   tables,
		Sequence: &sequence.Config{Policy: sequence.HoldForGap, First: sequence.FromOne},
	})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	applied := make(chan string, 4)
	consumer.AddHandler(router, "balances", "account.changed", transport.Subscriber(),
		func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			applied <- msg.UUID
			return nil, nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	for _, event := range []struct {
		id      string
		version int64
	}{
		{"credited", 2}, {"opened", 1}, {"opened, from elsewhere", 1}, {"closed", 3},
	} {
		msg := message.NewMessage(event.id, nil)
		outbox.SetAggregate(msg, "account", "17", event.version)
		must(transport.Publish("account.changed", msg))
	}
	for range 3 {
		fmt.Println(<-applied)
	}
	must(router.Close())
	// Output:
	// opened
	// credited
	// closed
}

// An old name of a customer arrives after the newer name. The handler is not called for
// the old name, so the newer name stays. OnStale is called instead, and records the old
// name.
func ExampleConsumer_onStale() {
	ctx := context.Background()
	db, remove := database()
	defer remove()
	tables := schema.Config{Dialect: schema.SQLite}
	must(schema.Up(ctx, db, tables))
	transport, err := embedded.New(db, embedded.Config{Schema: tables})
	must(err)

	names := make(chan string, 2)
	consumer, err := once.NewConsumer(db, once.ConsumerConfig{
		Schema: tables,
		Sequence: &sequence.Config{
			OnStale: func(_ context.Context, _ *sql.Tx, gap sequence.Gap, msg *message.Message) error {
				names <- fmt.Sprintf("version %d was %s, after version %d", gap.Version, msg.Payload, gap.Last)
				return nil
			},
		},
	})
	must(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	must(err)
	consumer.AddHandler(router, "names", "customer.renamed", transport.Subscriber(),
		func(_ context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			names <- "the name is " + string(msg.Payload)
			return nil, nil
		})
	go func() { must(router.Run(ctx)) }()
	<-router.Running()

	rename := func(name string, version int64) {
		msg := message.NewMessage(name, []byte(name))
		outbox.SetAggregate(msg, "customer", "17", version)
		must(transport.Publish("customer.renamed", msg))
		fmt.Println(<-names)
	}
	rename("Grace Hopper", 2)
	rename("Grace Murray", 1)
	must(router.Close())
	// Output:
	// the name is Grace Hopper
	// version 1 was Grace Murray, after version 2
}
