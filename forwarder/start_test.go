package forwarder_test

import (
	"context"
	"testing"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// A forwarder that cannot reach the database when it starts says so once, and begins
// when the database can be reached.
func TestUnreachableDatabaseAtTheStartIsLogged(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	config := schema.Config{Dialect: schema.SQLite}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	pool, failed := testkit.FailingStep(db, 1)
	defer pool.Close()
	var logs testkit.Logs
	f, err := forwarder.New(pool, newBroker(), forwarder.Config{Schema: config, Logger: &logs})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	<-f.Running()
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := failed(); got == "" {
		t.Fatal("no step failed")
	}
	if got := logs.Count("ERROR The outbox's tables cannot be read, trying again", testkit.ErrInjected.Error()); got != 1 {
		t.Fatalf("logs.Count is %d, want 1: %q", got, logs.Lines())
	}
}
