package quarantine

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// newCountedQuarantine returns a database, and a quarantine in it. kit.RowsRead
// counts the rows that the quarantine reads.
func newCountedQuarantine(t *testing.T) (kit.Database, *Entries) {
	t.Helper()
	db := kit.EmptyPostgres(t) // without the statistics of an earlier test's rows
	db.SetMaxOpenConns(1)      // RowsRead counts the reads of a single connection
	newTestTable(t, db)
	q, err := New(db.DB, operate.Config{})
	kit.OK(t, err)
	return db, q
}

// If an index finds the entries of a list, the list reads only these rows, both with the
// statistics of the empty table and with fresh statistics. The rare values are at the end
// of the table.
func TestFilterReadsOnlyMatchingRows(t *testing.T) {
	t.Parallel()
	db, q := newCountedQuarantine(t)
	exec := func(query string) {
		t.Helper()
		kit.Exec(t, db, query)
	}
	exec(`ALTER TABLE once_parked SET (autovacuum_enabled = false)`)
	exec(`ANALYZE once_parked`)
	exec(`INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint, tenant, event_type,
			aggregate_type,
			aggregate_id, error_type, reason, last_failed_at)
		SELECT CASE WHEN i % 10000 = 0 THEN 'rare' ELSE 'c' || i % 2 END, CASE WHEN i > 29990 THEN 'rare' ELSE 't' END, 'm' || i, '', '',
		       'quarantined', now(), CASE WHEN i % 9000 = 0 THEN 'new' ELSE 'f' || i % 10 END,
		       CASE WHEN i > 29990 THEN 'rare' ELSE 'tenant' END, CASE WHEN i > 29990 THEN 'rare' ELSE 'event' END,
		       CASE WHEN i > 29990 THEN 'rare' ELSE 'type' END, CASE WHEN i > 29990 THEN 'rare' ELSE 'aggregate' END,
		       CASE WHEN i > 29990 THEN 'rare' ELSE 'error' END,
		       CASE WHEN i > 29990 THEN 'gap' ELSE 'failed' END, now() - (30001 - i) * interval '1 minute'
		FROM generate_series(1, 30000) AS i`)
	var late time.Time // time of the first of the last ten entries
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT last_failed_at FROM once_parked WHERE id = 29991`).Scan(&late))
	for _, known := range []string{"when it was empty", "now"} {
		for _, of := range []struct {
			filter operate.Filter
			want   int
		}{
			{operate.Filter{Consumer: "rare"}, 3},
			{operate.Filter{Consumer: "none"}, 0},
			{operate.Filter{Consumer: "c1", Limit: 10}, 10},
			{operate.Filter{MessageID: "m29999"}, 1},
			{operate.Filter{MessageID: "m29999", Consumer: "c1"}, 1},
			{operate.Filter{MessageID: "m29999", Consumer: "rare"}, 0},
			{operate.Filter{Fingerprint: "new", Consumer: "c0"}, 3},
			{operate.Filter{Topic: "rare"}, 10},
			{operate.Filter{Tenant: "rare"}, 10},
			{operate.Filter{Tenant: "rare", Consumer: "c1"}, 5},
			{operate.Filter{EventType: "rare"}, 10},
			{operate.Filter{AggregateType: "rare"}, 10},
			{operate.Filter{AggregateType: "rare", Consumer: "c1"}, 5},
			{operate.Filter{AggregateType: "none"}, 0},
			{operate.Filter{AggregateID: "rare"}, 10},
			{operate.Filter{AggregateID: "rare", AggregateType: "type"}, 0},
			{operate.Filter{AggregateID: "aggregate", Limit: 10}, 10},
			{operate.Filter{ErrorType: "rare"}, 10},
			{operate.Filter{ErrorType: "rare", Consumer: "c0"}, 4},
			{operate.Filter{ErrorType: "none"}, 0},
			{operate.Filter{Consumer: "c1", Topic: "rare"}, 5},
			{operate.Filter{Consumer: "rare", Topic: "rare"}, 1},
			{operate.Filter{Reason: chain.ReasonGap}, 10},
			{operate.Filter{FailedAfter: late}, 10},
			{operate.Filter{FailedAfter: late.Add(-4 * time.Minute), Tenant: "tenant"}, 4},
		} {
			before := kit.RowsRead(t, db, "once_parked")
			page, err := q.List(t.Context(), of.filter)
			if err != nil || len(page.Rows) != of.want {
				t.Fatalf("%+v: %d entries, %v", of.filter, len(page.Rows), err)
			}
			listed := kit.RowsRead(t, db, "once_parked")
			if rows := listed - before; rows > 100 {
				t.Errorf("the table was looked at %s: %d rows for the list of %+v", known, rows, of.filter)
			}
			if of.filter.Limit > 0 {
				continue // Limit is the number of entries here, but the groups contain all entries
			}
			kit.OK(t, kit.Err(q.Groups(t.Context(), of.filter)))
			if rows := kit.RowsRead(t, db, "once_parked") - listed; rows > 200 {
				t.Errorf("the table was looked at %s: %d rows for the groups of %+v", known, rows, of.filter)
			}
		}
		before := kit.RowsRead(t, db, "once_parked")
		if n, err := q.Count(t.Context(), operate.Filter{Tenant: "tenant", Limit: 50}); n.N != 50 || err != nil {
			t.Fatalf("%d entries are counted, %v, want 50", n.N, err)
		}
		if rows := kit.RowsRead(t, db, "once_parked") - before; rows > 200 {
			t.Errorf("the table was looked at %s: %d rows for a count of 50", known, rows)
		}
		exec(`ANALYZE once_parked`)
	}
}
