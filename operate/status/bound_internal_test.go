package status

import (
	"strconv"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

// The queries for counts and for failures read few pages of large tables, even if the
// planner has no statistics, and even if few rows match.
func TestCountsReadFewPages(t *testing.T) {
	kit.Long(t)
	db := kit.EmptyPostgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	d := kit.Dialect(t, schema.Config{})
	exec := func(query string) {
		t.Helper()
		kit.Exec(t, db, query)
	}
	exec(`ALTER TABLE once_outbox SET (autovacuum_enabled = false); ALTER TABLE once_parked SET (autovacuum_enabled = false)`)
	exec(`INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
		SELECT n, 't', 0, convert_to(repeat('p', 200), 'UTF8'), '{}' FROM generate_series(1, 40000) AS n`)
	exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		SELECT 'c', 't', n, '', convert_to(repeat('p', 200), 'UTF8'), 'resolved', now() FROM generate_series(1, 40000) AS n`)
	size := kit.One[int](t, db, `SELECT pg_relation_size('once_outbox') / 8192`)
	for name, query := range map[string]string{
		"the counts": strings.ReplaceAll(d.SQL(countsQuery(false)), "$1", strconv.Itoa(bound+1)), "the failures": d.SQL(failuresQuery),
	} {
		plan := kit.One[[]byte](t, db, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+query)
		if n := kit.PagesRead(t, plan); n > size {
			t.Errorf("%d pages were read for %s; the outbox has %d", n, name, size)
		}
	}
}
