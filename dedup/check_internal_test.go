package dedup

import (
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// Each batch is checked, because one check serves all its messages. With SQLite, each
// message is checked, because the check needs no round trip.
func TestEachBatchIsChecked(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		inbox, err := New(db.DB, Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}, Logger: testkit.Logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		inbox.sample.n.Store(1000) // the sample contains number 1024 next
		for _, batch := range []bool{true, false} {
			_, check, release, err := inbox.begin(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			release()
			sent := check != nil && check.Sent // by the driver, together with COMMIT
			if got, want := check != nil, batch || sent || db.Dialect == "sqlite"; got != want {
				t.Errorf("batch %t: checked is %t, want %t", batch, got, want)
			}
		}
	})
}

// Only one process at a time works on days. Another process does not wait for it.
func TestOneProcessAtATimeWorksOnDays(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	config := schema.Config{Inbox: schema.ByDay}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	inbox, err := New(db.DB, Config{Schema: config, Logger: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var locked bool
	if err := tx.QueryRowContext(t.Context(), inbox.sql.days.tryLock).Scan(&locked); err != nil || !locked {
		t.Fatalf("locked is %t, %v", locked, err)
	}
	sweep := func(partitions int) {
		t.Helper()
		if _, err := inbox.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		var n int
		err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_inherits WHERE inhparent = 'once_inbox'::regclass`).Scan(&n)
		if err != nil || n != partitions {
			t.Errorf("%d partitions, %v; want %d", n, err, partitions)
		}
	}
	sweep(1) // the default partition
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	sweep(1 + daysAhead)
}
