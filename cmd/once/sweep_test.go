package main

import (
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

func TestSweep(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	s := newShell(t, db)
	const old = `CAST(unixepoch('subsec') * 1000 AS INTEGER) - 40 * 86400000`
	_, err := db.ExecContext(t.Context(),
		`INSERT INTO once_inbox (message_id, consumer, processed_at, digest) VALUES ('old', 'payments', `+old+`, 'x')`)
	if err != nil {
		t.Fatal(err)
	}
	if out := object[sweepJSON](s, exitDone, "sweep", "--retention", "60d"); out.Removed != 0 {
		t.Errorf("sweep %+v", out)
	}
	if out := object[sweepJSON](s, exitDone, "sweep"); out.Removed != 1 {
		t.Errorf("sweep %+v", out)
	}
	s.says(s.once(exitUsage, "sweep", "--retention", "1h"), "MaxDuplicateAge")
}

func TestMoverSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := newShell(t, testkit.Postgres(t))
	s.says(s.once(exitFailed, "mover", "--once"), `no such table: "watermill_forwarder_topic"`)
	s = newShell(t, testkit.SQLite(t))
	s.says(s.once(exitUsage, "mover", "--once"), "PostgreSQL only")
}
