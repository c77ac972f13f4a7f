package once_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// If a name in the configuration is misspelt, its handler runs in another mode than
// configured. So a name without a handler must be logged.
func TestConfiguredNameWithoutAHandlerIsLogged(t *testing.T) {
	t.Parallel()
	db, logs := testkit.SQLite(t).DB, &testkit.Logs{}
	tables := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(t.Context(), db, tables); err != nil {
		t.Fatal(err)
	}
	config := once.ConsumerConfig{
		Schema:           tables,
		DurableConsumers: []string{"mail", "payment"},
		Dedup:            dedup.Config{Idempotent: []string{"serach", "payments", "later"}},
		Logger:           logs,
	}
	consumer, err := once.NewConsumer(db, config)
	if err != nil {
		t.Fatal(err)
	}
	config.Logger = nil
	another, err := once.NewConsumer(db, config) // shares the configuration and has some of the handlers
	if err != nil {
		t.Fatal(err)
	}
	handle := func(context.Context, *sql.Tx, *message.Message) ([]*message.Message, error) { return nil, nil }
	start := func(names ...string) (end func()) {
		t.Helper()
		router, err := message.NewRouter(message.RouterConfig{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		transport := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
		for _, name := range names {
			of := consumer
			if name == "mail" {
				of = another
			}
			of.AddHandler(router, name, "orders.placed", transport, handle)
		}
		ended := make(chan error, 1)
		go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
		<-router.Running()
		return func() {
			if err := errors.Join(router.Close(), <-ended); err != nil {
				t.Error(err)
			}
		}
	}
	defer start("payments", "mail", "search")()

	for name, field := range map[string]string{"payment": "DurableConsumers", "serach": "Dedup.Idempotent", "later": "Dedup.Idempotent"} {
		line := `ERROR A configured consumer has no handler: check the spelling of its name consumer=` + name + ` field=` + field +
			` err=ConsumerConfig.` + field + ` has "` + name + `", the handlers are ["mail" "payments" "search"]`
		if logs.CountLine(line) != 1 {
			t.Errorf("%q is not logged once: %q", line, logs.Lines())
		}
	}
	if n := logs.Count("A configured consumer has no handler"); n != 3 {
		t.Errorf("%d names are logged, want 3: %q", n, logs.Lines())
	}

	// Another router of the same Consumer logs when it starts.
	defer start("later")()
	if n := logs.Count("A configured consumer has no handler"); n != 3+2 {
		t.Errorf("%d names are logged, want 2 more: %q", n, logs.Lines())
	}
}
