package forwarder_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// eachDatabase runs test with each kind of database, after it has created the tables.
func eachDatabase(t *testing.T, test func(t *testing.T, db *sql.DB, config schema.Config)) {
	t.Helper()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := schema.Config{Dialect: schema.Dialect(db.Dialect)}
		if err := schema.Up(t.Context(), db.DB, config); err != nil {
			t.Fatal(err)
		}
		test(t, db.DB, config)
	})
}

// postgres returns a PostgreSQL database with the tables.
func postgres(t testing.TB) *sql.DB {
	t.Helper()
	db := testkit.Postgres(t).DB
	if err := schema.Up(t.Context(), db, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	return db
}

// Stats ends with its context, also while its statement waits for a lock.
func TestStatsEndsWithItsContext(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	f, err := forwarder.New(db, newBroker(), forwarder.Config{})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `LOCK TABLE once_outbox IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := f.Stats(ctx)
		ended <- err
	}()
	eventually(t, "its statement waits", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND relation = 'once_outbox'::regclass`) == 1
	})
	cancel()
	eventually(t, "it ends", func() bool { return len(ended) == 1 })
	if err := <-ended; err == nil {
		t.Error("no error, although its context has ended")
	}
}
