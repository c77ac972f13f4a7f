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
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// quick are settings under which nothing takes long.
func quick(config schema.Config) forwarder.Config {
	return forwarder.Config{
		Schema:       config,
		PollMax:      20 * time.Millisecond,
		Backoff:      func(int) time.Duration { return 5 * time.Millisecond },
		CloseTimeout: patience,
	}
}

// start runs a forwarder until the test ends.
func start(t *testing.T, db *sql.DB, publisher message.Publisher, config forwarder.Config) *forwarder.Forwarder {
	t.Helper()
	f, err := forwarder.New(db, publisher, config)
	require.NoError(t, err)
	run(t, f)
	return f
}

func run(t *testing.T, f *forwarder.Forwarder) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		require.NoError(t, <-ended)
	})
	select {
	case <-f.Running():
	case err := <-ended:
		ended <- err
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "does not run")
	}
}

// msg is a message with an ordering key, or without if key is empty.
func msg(id, key string) *message.Message {
	m := message.NewMessage(id, []byte("payload of "+id))
	if key != "" {
		outbox.SetOrderingKey(m, key)
	}
	return m
}

// put commits messages.
func put(t *testing.T, db *sql.DB, config schema.Config, topic string, msgs ...*message.Message) {
	t.Helper()
	box, err := outbox.New(outbox.Config{Schema: config})
	require.NoError(t, err)
	require.NoError(t, box.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, msgs...)
	}))
}

// count returns the result of a query for one number.
func count(t *testing.T, db *sql.DB, query string, args ...any) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n))
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

// exec changes the tables by hand.
func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), query, args...)
	require.NoError(t, err)
}

// slack is what a machine that has other things to do takes on top of what is
// promised.
const slack = 30 * time.Second

// takes has a part of the test take its time: a slow broker, a slow writer.
// Nothing is waited for.
func takes(d time.Duration) { <-time.After(d) }

// meanwhile gives a forwarder the time to do what it should not, or to go on
// with what it does. The test fails for no want of it.
func meanwhile(d time.Duration) { <-time.After(d) }

func isSQLite(t *testing.T, db *sql.DB) bool {
	t.Helper()
	return strings.Contains(fmt.Sprintf("%T", db.Driver()), "sqlite")
}

// now is the database's clock, for a column of the tables.
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
	require.NoError(t, err)
	return string(text)
}
