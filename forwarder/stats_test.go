package forwarder

import (
	"math"
	"testing"

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
		if err := schema.Up(t.Context(), db.DB, config.Schema); err != nil {
			t.Fatal(err)
		}
		f, err := New(db.DB, new(counter), config)
		if err != nil {
			t.Fatal(err)
		}
		look := func() boundedStats {
			t.Helper()
			seen, err := f.store.boundedStats(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return seen
		}
		if got := look(); got != (boundedStats{}) {
			t.Fatalf("look is %+v, want none", got)
		}

		hourAgo, due := "now() - interval '1 hour'", "now() - interval '2 hours'"
		if db.Dialect == "sqlite" {
			hourAgo, due = "(unixepoch() - 3600) * 1000", "(unixepoch() - 7200) * 1000"
		}
		const columns = `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at) VALUES `
		if _, err := db.ExecContext(t.Context(), columns+`('1', 't', 0, '', '{}', `+hourAgo+`, NULL)`); err != nil {
			t.Fatal(err)
		}
		seen := look()
		if seen.pending != 1 {
			t.Fatalf("seen.pending is %d, want 1", seen.pending)
		}
		if got := seen.lag.Seconds(); math.Abs(got-3600) > 60 {
			t.Fatalf("seen.lag.Seconds is %v, want 3600, give or take 60", got)
		}

		if _, err := db.ExecContext(t.Context(), columns+`('2', 't', 0, '', '{}', `+hourAgo+`, `+due+`)`); err != nil {
			t.Fatal(err)
		}
		if got := look().lag.Seconds(); math.Abs(got-7200) > 60 {
			t.Fatalf("look().lag.Seconds is %v, want 7200, give or take 60: what should have been sent when it was due", got)
		}

		later, failing := "now() + interval '5 minutes'", "now() - interval '3 hours'"
		if db.Dialect == "sqlite" {
			later, failing = "(unixepoch() + 300) * 1000", "(unixepoch() - 10800) * 1000"
		}
		if _, err := db.ExecContext(t.Context(), columns+`('3', 't', 0, '', '{}', `+hourAgo+`, `+later+`)`); err != nil {
			t.Fatal(err)
		}
		if got := look().lag.Seconds(); math.Abs(got-7200) > 60 {
			t.Fatalf("look().lag.Seconds is %v, want 7200, give or take 60: what its producer has delayed", got)
		}
		if _, err := db.ExecContext(t.Context(), `UPDATE once_outbox SET failing_since = `+failing+` WHERE message_id = '3'`); err != nil {
			t.Fatal(err)
		}
		if got := look().lag.Seconds(); math.Abs(got-10800) > 60 {
			t.Fatalf("look().lag.Seconds is %v, want 10800, give or take 60: what backs off, since it failed first", got)
		}
		stats, err := f.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stats.Failing != 1 {
			t.Fatalf("stats.Failing is %d, want 1", stats.Failing)
		}
		if got := stats.FailingFor.Seconds(); math.Abs(got-10800) > 60 {
			t.Fatalf("stats.FailingFor.Seconds is %v, want 10800, give or take 60", got)
		}
	})
}
