package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// A forwarder that cannot reach the database when it starts logs this once. It begins
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

// A forwarder whose tables cannot be used ends with an error, because waiting does not
// help.
func TestForwarderWithUnusableTablesEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string // a statement that changes the tables
		want   error
	}{
		"older tables": {`DELETE FROM once_migrations`, schema.ErrOutdated},
		"newer tables": {`INSERT INTO once_migrations (version, compatible_from) VALUES (9999, 9999)`, schema.ErrNewer},
	} {
		t.Run(name, func(t *testing.T) {
			eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
				exec(t, db, c.change)
				endsWith(t, db, config, c.want)
			})
		})
	}
	t.Run("another encoding", func(t *testing.T) {
		endsWith(t, testkit.PostgresIn(t, "LATIN1").DB, schema.Config{}, schema.ErrEncoding)
	})
}

// endsWith checks that Run returns an error that wraps want.
func endsWith(t *testing.T, db *sql.DB, config schema.Config, want error) {
	t.Helper()
	if err := ends(t, background(t, db, newBroker(), forwarder.Config{Schema: config, Logger: &testkit.Logs{}})); !errors.Is(err, want) {
		t.Errorf("Run: got %v, want %v", err, want)
	}
}
