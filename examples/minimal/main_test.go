package main

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/oncetest"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// Each order is paid once, even if its message arrives twice, or at the same time as
// another message, or out of order, or again after a failure of any statement.
func TestCapturePayment(t *testing.T) {
	db := newDatabase(t)
	if err := schema.Up(t.Context(), db, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	oncetest.Run(t, oncetest.Config{
		DB:      db,
		Handler: capturePayment,
		Messages: []*message.Message{
			message.NewMessage("first", []byte(`{"id":"17","amount":1290}`)),
			message.NewMessage("second", []byte(`{"id":"18","amount":450}`)),
		},
		Reset: func(ctx context.Context, db *sql.DB) error {
			_, err := db.ExecContext(ctx, `TRUNCATE payments`)
			return err
		},
	})
}

// newDatabase returns a database that only this test uses. It is on the server that
// PG_DSN names.
func newDatabase(t *testing.T) *sql.DB {
	t.Helper()
	dsn := os.Getenv("PG_DSN")
	if dsn == "" {
		t.Fatal("PG_DSN is not set: set it to the postgres:// URL of a server where the test may create a database")
	}
	server := open(t, dsn)
	name := "minimal_" + strings.ReplaceAll(outbox.NewID(), "-", "")
	if _, err := server.ExecContext(t.Context(), `CREATE DATABASE `+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := server.ExecContext(context.WithoutCancel(t.Context()), `DROP DATABASE `+name); err != nil {
			t.Error(err)
		}
	})
	address, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("PG_DSN is not a URL")
	}
	address.Path = "/" + name
	return open(t, address.String())
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
