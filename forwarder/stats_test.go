package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// The lag of a message is counted from when it was written or, if it has a due time,
// from when it is due. If it was refused, the lag is counted from the first refusal,
// although it is due later. The lag of the outbox is the largest lag of a message.
func TestAGlanceSeesHowLateTheOutboxIs(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		config := Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}}
		require.NoError(t, schema.Up(t.Context(), db.DB, config.Schema))
		f, err := New(db.DB, new(counter), config)
		require.NoError(t, err)
		look := func() boundedStats {
			t.Helper()
			seen, err := f.store.boundedStats(t.Context())
			require.NoError(t, err)
			return seen
		}
		require.Zero(t, look())

		hourAgo, due := "now() - interval '1 hour'", "now() - interval '2 hours'"
		if db.Dialect == "sqlite" {
			hourAgo, due = "(unixepoch() - 3600) * 1000", "(unixepoch() - 7200) * 1000"
		}
		const columns = `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at) VALUES `
		_, err = db.ExecContext(t.Context(), columns+`('1', 't', 0, '', '{}', `+hourAgo+`, NULL)`)
		require.NoError(t, err)
		seen := look()
		require.EqualValues(t, 1, seen.pending)
		require.InDelta(t, 3600, seen.lag.Seconds(), 60)

		_, err = db.ExecContext(t.Context(), columns+`('2', 't', 0, '', '{}', `+hourAgo+`, `+due+`)`)
		require.NoError(t, err)
		require.InDelta(t, 7200, look().lag.Seconds(), 60, "what should have been sent when it was due")

		later, failing := "now() + interval '5 minutes'", "now() - interval '3 hours'"
		if db.Dialect == "sqlite" {
			later, failing = "(unixepoch() + 300) * 1000", "(unixepoch() - 10800) * 1000"
		}
		_, err = db.ExecContext(t.Context(), columns+`('3', 't', 0, '', '{}', `+hourAgo+`, `+later+`)`)
		require.NoError(t, err)
		require.InDelta(t, 7200, look().lag.Seconds(), 60, "what its producer has delayed")
		_, err = db.ExecContext(t.Context(), `UPDATE once_outbox SET failing_since = `+failing+` WHERE message_id = '3'`)
		require.NoError(t, err)
		require.InDelta(t, 10800, look().lag.Seconds(), 60, "what backs off, since it failed first")
		stats, err := f.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, stats.Failing)
		require.InDelta(t, 10800, stats.FailingFor.Seconds(), 60)
	})
}
