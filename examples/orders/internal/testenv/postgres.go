package testenv

import (
	"context"
	"database/sql"
	"net/url"
	"testing"
	"time"

	_ "github.com/lib/pq" // the driver that Postgres opens
)

// Postgres returns the DSN of a new database, which is dropped after the test.
func Postgres(t testing.TB) string {
	t.Helper()
	dsn := variable(t, "PG_DSN")
	server, err := sql.Open("postgres", dsn)
	if err != nil {
		t.Fatal(err)
	}
	name := uniqueName()
	if _, err := server.ExecContext(t.Context(), `CREATE DATABASE `+name+` TEMPLATE template0`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer server.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if _, err := server.ExecContext(ctx, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("PG_DSN is not a URL") // err may contain the password
	}
	address.Path = "/" + name
	return address.String()
}
