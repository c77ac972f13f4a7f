package forwarder_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// quick returns a configuration with short pauses.
func quick(config schema.Config) forwarder.Config {
	return forwarder.Config{
		Schema:       config,
		PollMax:      20 * time.Millisecond,
		Backoff:      func(int) time.Duration { return 5 * time.Millisecond },
		CloseTimeout: patience,
	}
}

// start starts a forwarder that runs until the test ends.
func start(t *testing.T, db *sql.DB, publisher message.Publisher, config forwarder.Config) *forwarder.Forwarder {
	t.Helper()
	f, err := forwarder.New(db, publisher, config)
	if err != nil {
		t.Fatal(err)
	}
	run(t, f)
	return f
}

func run(t *testing.T, f *forwarder.Forwarder) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
	select {
	case <-f.Running():
	case err := <-ended:
		ended <- err
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("does not run")
	}
}

// msg returns a message. It has an ordering key unless key is empty.
func msg(id, key string) *message.Message {
	m := message.NewMessage(id, []byte("payload of "+id))
	if key != "" {
		outbox.SetOrderingKey(m, key)
	}
	return m
}

// put writes messages to the outbox and commits them.
func put(t *testing.T, db *sql.DB, config schema.Config, topic string, msgs ...*message.Message) {
	t.Helper()
	box, err := outbox.New(outbox.Config{Schema: config})
	if err != nil {
		t.Fatal(err)
	}
	err = box.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, msgs...)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// count runs a query that returns one number.
func count(t *testing.T, db *sql.DB, query string, args ...any) int {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func pending(t *testing.T, db *sql.DB) int {
	t.Helper()
	return count(t, db, `SELECT COUNT(*) FROM once_outbox`)
}

// drained waits until the outbox is empty.
func drained(t *testing.T, db *sql.DB) {
	t.Helper()
	eventually(t, "the outbox is empty", func() bool { return pending(t, db) == 0 })
}

// exec runs a statement on the database.
func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// slack is added to promised times in tests, because the machine may be busy.
const slack = 30 * time.Second

// takeTime waits for d, to simulate a slow broker or a slow writer. It is not used to
// wait for an event.
func takeTime(d time.Duration) { <-time.After(d) }

// giveTime waits for d, so that a forwarder can continue, or could do something wrong.
// The test does not fail if d is too short.
func giveTime(d time.Duration) { <-time.After(d) }

func isSQLite(t *testing.T, db *sql.DB) bool {
	t.Helper()
	return strings.Contains(fmt.Sprintf("%T", db.Driver()), "sqlite")
}

// now returns an SQL expression for the current time of the database's clock, as a
// value for the tables.
func now(t *testing.T, db *sql.DB) string {
	t.Helper()
	if isSQLite(t, db) {
		return `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
	}
	return `now()`
}

func encoded(t *testing.T, metadata message.Metadata) string {
	t.Helper()
	text, err := json.Marshal(metadata)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
