package tests

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// If a middleware of Watermill around ours would lose messages, the router does not start. Other
// middlewares are allowed.
func TestStartRefusesMiddlewareThatLosesMessages(t *testing.T) {
	db, tables := testkit.SQLite(t).DB, schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(t.Context(), db, tables); err != nil {
		t.Fatal(err)
	}
	poisonQueue, err := middleware.PoisonQueue(gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}), "poison")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		stock []message.HandlerMiddleware
		says  string
	}{
		{
			"InstantAck",
			[]message.HandlerMiddleware{middleware.Recoverer, middleware.InstantAck},
			`handler "payments" has Watermill's middleware InstantAck: it acks before the message is handled, ` +
				`so a message that fails is lost; remove it`,
		},
		{
			"Deduplicator",
			[]message.HandlerMiddleware{(&middleware.Deduplicator{}).Middleware},
			`handler "payments" has Watermill's middleware Deduplicator: it remembers a message before it is handled, ` +
				`so a message that failed is skipped when it is delivered again; remove it`,
		},
		{
			"PoisonQueue",
			[]message.HandlerMiddleware{middleware.Recoverer, poisonQueue},
			`handler "payments" has Watermill's middleware PoisonQueue: it takes messages away from their consumer ` +
				`during an outage of the database, and when the process stops; remove it`,
		},
		{"others", []message.HandlerMiddleware{middleware.Recoverer, middleware.CorrelationID}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			consumer, err := once.NewConsumer(db, once.ConsumerConfig{Schema: tables, Logger: watermill.NopLogger{}})
			if err != nil {
				t.Fatal(err)
			}
			router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
			if err != nil {
				t.Fatal(err)
			}
			router.AddMiddleware(c.stock...)
			consumer.AddHandler(router, "payments", "orders.placed", gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}),
				func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) { return nil, nil })
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				select {
				case <-router.Running():
					cancel()
				case <-ctx.Done():
				}
			}()
			err = router.Run(ctx)
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.HasSuffix(err.Error(), ": once: "+c.says)) {
				t.Errorf("Run says %v", err)
			}
		})
	}
}
