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

// maxOpen keeps a test from using up the connections of a server that others
// use too, which are 100 unless somebody changed it.
const maxOpen = 30

// maxIdle keeps most of a test's time from going into connecting, for which the
// server starts a process each time.
const maxIdle = 10

// Postgres returns a new database on a server that others use too: see
// [PrivatePostgres] for one that may be killed. At most 30 connections are
// opened at a time unless the test says otherwise.
func Postgres(t testing.TB) Database {
	t.Helper()
	return newDatabase(t, "")
}

// PostgresIn is [Postgres] with another encoding than the server's: "LATIN1",
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

// openPostgres is sql.Open, but for errors, which could hold the password.
func openPostgres(dsn string) (*sql.DB, error) {
	connector, err := pq.NewConnector(dsn)
	if err != nil {
		return nil, errors.New("testkit: the DSN of PostgreSQL cannot be read")
	}
	return sql.OpenDB(connector), nil
}

// withDatabase returns dsn, a URL or a list of words, for another database.
func withDatabase(dsn, name string) string {
	if parsed, err := url.Parse(dsn); err == nil && strings.HasPrefix(parsed.Scheme, "postgres") {
		parsed.Path = "/" + name
		return parsed.String()
	}
	return fmt.Sprintf("%s dbname=%s", dsn, name) // the last one counts
}
