package main

import (
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	testkit.EachEmptyDatabase(t, func(t *testing.T, db testkit.Database) {
		s := &shell{T: t, env: map[string]string{"ONCE_DSN": db.DSN}}
		s.says(s.once(exitFailed, "dead", "list"), "the tables are missing", "once migrate up")
		missing := object[tablesJSON](s, exitFound, "migrate", "check")
		if missing.OK || !strings.Contains(missing.Problem, "once migrate up") {
			t.Errorf("check %+v", missing)
		}
		for range 2 {
			if up := object[tablesJSON](s, exitDone, "migrate", "up"); !up.OK || up.Version != 1 {
				t.Errorf("up %+v", up)
			}
		}
		s.says(s.once(exitDone, "migrate", "check"), "The tables work with version 1.")
		s.says(s.once(exitFound, "migrate", "check", "--prefix", "other_"), "other_migrations")

		// The text is for another migration tool.
		text := object[sqlJSON](s, exitDone, "migrate", "sql", "--dialect", db.Dialect, "--prefix", "other_").SQL
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		s.once(exitDone, "migrate", "check", "--prefix", "other_")
	})
}

func TestMigrateRoles(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	s := newShell(t, db)
	text := s.once(exitDone, "migrate", "roles", "--role-prefix", "cmd_test_")
	s.says(text, "cmd_test_operator", "cmd_test_watcher")
}

// "once migrate up" creates a missing SQLite file. No other command does.
func TestSQLiteFile(t *testing.T) {
	t.Parallel()
	dsn := "sqlite:" + t.TempDir() + "/a ?b.db"
	s := &shell{T: t, env: map[string]string{"ONCE_DSN": dsn}}
	s.says(s.once(exitFailed, "status"), "unable to open database file")
	s.once(exitDone, "migrate", "up")
	s.says(s.once(exitDone, "status"), "0 messages wait")
}

// The SQL of all migrations ends with the statements that partition the inbox and the
// sent log by day. The SQL of later migrations must not contain these statements.
func TestMigrateSQLHasTheLayouts(t *testing.T) {
	s := &shell{T: t, env: map[string]string{"ONCE_INBOX": "by_day"}}
	s.says(s.once(exitDone, "migrate", "sql", "--sent", "by_day"), "-- The inbox by day", "-- The sent log by day")
	if text := s.once(exitDone, "migrate", "sql", "--from", "1"); strings.Contains(text, "by day") {
		t.Errorf("migrations after version 1: %s", text)
	}
}
