package forwarder

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// The tables are asked once in a while, however many look, and what they said
// is not told when they no longer answer.
func TestTheTablesAreLookedAtOnceInAWhile(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}}
		require.NoError(t, schema.Up(t.Context(), db.DB, config.Schema))
		f, err := New(db.DB, new(counter), config)
		require.NoError(t, err)
		b := &backlog{f: f}
		look := func() (glance, bool) { return b.look(t.Context()) }

		seen, ok := look()
		require.True(t, ok)
		require.Zero(t, seen)
		remembered := func() { // however slow this is
			t.Helper()
			require.False(t, b.next.IsZero(), "it is not to be looked at again")
			b.next = time.Now().Add(time.Hour)
		}
		remembered()

		hourAgo, due := "now() - interval '1 hour'", "now() - interval '2 hours'"
		if db.Dialect == "sqlite" {
			hourAgo, due = "(unixepoch() - 3600) * 1000", "(unixepoch() - 7200) * 1000"
		}
		const columns = `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at) VALUES `
		_, err = db.ExecContext(t.Context(), columns+`('1', 't', 0, '', '{}', `+hourAgo+`, NULL)`)
		require.NoError(t, err)
		seen, _ = look()
		require.Zero(t, seen, "it was looked at a moment ago")

		b.next = time.Time{}
		seen, _ = look()
		require.EqualValues(t, 1, seen.pending)
		require.InDelta(t, 3600, seen.lag.Seconds(), 60)

		_, err = db.ExecContext(t.Context(), columns+`('2', 't', 0, '', '{}', `+hourAgo+`, `+due+`)`)
		require.NoError(t, err)
		b.next = time.Time{}
		seen, _ = look()
		require.InDelta(t, 7200, seen.lag.Seconds(), 60, "what should have been sent when it was due")

		b.next = time.Time{}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, ok = b.look(ended)
		require.False(t, ok)
		remembered()
		_, ok = look()
		require.False(t, ok, "an old value would say that all is well")
	})
}
