package testkit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
)

// maxOpen limits the connections of a test to a shared server, which accepts 100 by
// default.
const maxOpen = 30

// maxIdle keeps connections open, because for each new connection the server starts a
// process.
const maxIdle = 10

// Postgres returns a new database on a shared server. Use [PrivatePostgres] for a server
// that the test may kill. By default the database opens at most 30 connections.
func Postgres(t testing.TB) Database {
	t.Helper()
	return newDatabase(t, "")
}

// PostgresIn is like [Postgres] with another encoding, for example "LATIN1" or
// "SQL_ASCII".
func PostgresIn(t testing.TB, encoding string) Database {
	t.Helper()
	return newDatabase(t, " LC_COLLATE 'C' LC_CTYPE 'C' ENCODING '"+encoding+"'")
}

func newDatabase(t testing.TB, options string) Database {
	t.Helper()
	server, err := postgresServer()
	if err != nil {
		Without(t, err)
	}
	name := uniqueName(databasePrefix, "_")
	if err := server.create(t.Context(), name, options); err != nil {
		t.Fatalf("testkit: create database %s: %v", name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := server.drop(ctx, name); err != nil {
			t.Errorf("testkit: drop database %s: %v", name, err)
		}
	})

	dsn := withDatabase(server.dsn, name)
	db, err := openPostgres(dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(maxOpen)
	db.SetMaxIdleConns(maxIdle)
	db.SetConnMaxIdleTime(time.Second)
	t.Cleanup(func() { _ = db.Close() })
	return Database{DB: db, DSN: dsn, Dialect: "postgres"}
}

// openPostgres is like sql.Open, but its errors do not contain the password.
func openPostgres(dsn string) (*sql.DB, error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, errors.New("testkit: the DSN of PostgreSQL is invalid")
	}
	return sql.OpenDB(connector), nil
}

// withDatabase returns dsn, a URL or key=value pairs, with another database.
func withDatabase(dsn, name string) string {
	if parsed, err := url.Parse(dsn); err == nil && strings.HasPrefix(parsed.Scheme, "postgres") {
		parsed.Path = "/" + name
		return parsed.String()
	}
	return fmt.Sprintf("%s dbname=%s", dsn, name) // the last dbname counts
}
