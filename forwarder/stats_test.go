package forwarder

import (
	"math"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// newIdle returns a forwarder that does not run. It creates the tables.
func newIdle(t *testing.T, db testkit.Database) *Forwarder {
	t.Helper()
	config := Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}}
	if err := schema.Up(t.Context(), db.DB, config.Schema); err != nil {
		t.Fatal(err)
	}
	f, err := New(db.DB, new(counter), config)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The lag of a message is counted from when it was written or, if it has a due time,
// from when it is due. If it was refused, the lag is counted from the first refusal,
// although it is due later. The lag of the outbox is the largest lag of a message.
func TestAGlanceSeesHowLateTheOutboxIs(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := newIdle(t, db)
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

		now, hourAgo, due := "now()", "now() - interval '1 hour'", "now() - interval '2 hours'"
		if db.Dialect == "sqlite" {
			now, hourAgo, due = "unixepoch() * 1000", "(unixepoch() - 3600) * 1000", "(unixepoch() - 7200) * 1000"
		}
		const columns = `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata, created_at, due_at) VALUES `
		for _, row := range []string{`('1', 't', 0, '', '{}', ` + hourAgo + `, NULL)`, `('new', 't', 0, '', '{}', ` + now + `, NULL)`} {
			if _, err := db.ExecContext(t.Context(), columns+row); err != nil {
				t.Fatal(err)
			}
		}
		seen := look()
		if seen.pending != 2 {
			t.Fatalf("seen.pending is %d, want 2", seen.pending)
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
		if _, err := db.ExecContext(t.Context(), `UPDATE once_outbox SET failing_since = `+hourAgo+` WHERE message_id = '2'`); err != nil {
			t.Fatal(err)
		}
		if got := look().lag.Seconds(); math.Abs(got-10800) > 60 {
			t.Fatalf("look().lag.Seconds is %v, want 10800, give or take 60: the earliest of two failures", got)
		}
		stats, err := f.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if stats.Failing != 2 {
			t.Fatalf("stats.Failing is %d, want 2", stats.Failing)
		}
		if got := stats.Oldest.Seconds(); math.Abs(got-3600) > 60 {
			t.Fatalf("stats.Oldest.Seconds is %v, want 3600, give or take 60", got)
		}
		if got := stats.FailingFor.Seconds(); math.Abs(got-10800) > 60 {
			t.Fatalf("stats.FailingFor.Seconds is %v, want 10800, give or take 60", got)
		}
	})
}

// Each number of Stats counts the rows of one table.
func TestStatsCountTheRowsOfEachTable(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		f := newIdle(t, db)
		for _, query := range []string{
			`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ('1', 't', 0, '', '{}')`,
			`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ('a', 7, 7, 'dead'), ('b', 8, 8, 'dead')`,
			`INSERT INTO once_outbox_dead
				(position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown, died_at)
				SELECT n, 'dead', 't', payload, metadata, created_at, 1, '', '', false, created_at
				FROM once_outbox CROSS JOIN (SELECT 1 AS n UNION ALL SELECT 2 UNION ALL SELECT 3) AS three`,
			`INSERT INTO once_pauses (kind, name, actor, why) VALUES
				('topic', 'a', 'ann', 'w'), ('topic', 'b', 'ann', 'w'), ('topic', 'c', 'ann', 'w'), ('tenant', 'd', 'ann', 'w')`,
		} {
			if _, err := db.ExecContext(t.Context(), query); err != nil {
				t.Fatal(err)
			}
		}
		seen, err := f.store.boundedStats(t.Context())
		if err != nil || seen.pending != 1 || seen.blockedKeys != 2 || seen.dead != 3 || seen.pauses != 4 {
			t.Errorf("boundedStats: got %+v, %v; want 1 pending, 2 blocked keys, 3 dead, 4 pauses", seen, err)
		}
		stats, err := f.Stats(t.Context())
		if err != nil || stats.Pending != 1 || stats.BlockedKeys != 2 || stats.Dead != 3 || stats.Pauses != 4 {
			t.Errorf("Stats: got %+v, %v; want 1 pending, 2 blocked keys, 3 dead, 4 pauses", stats, err)
		}
	})
}
