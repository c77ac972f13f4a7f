package testkit

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite" // SQLite
)

// SQLite returns a new database in a file. Its transactions take the write lock when
// they begin. A transaction waits for the lock for up to ten seconds.
func SQLite(t testing.TB) Database {
	t.Helper()
	dsn := (&url.URL{
		Scheme: "file",
		Path:   filepath.Join(t.TempDir(), "test.db"),
		RawQuery: "_txlock=immediate&_pragma=busy_timeout(10000)" +
			"&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(ON)",
	}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close %s: %v", dsn, err)
		}
	})
	return Database{DB: db, DSN: dsn, Dialect: "sqlite"}
}
