package quarantine

import (
	"testing"
	"time"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
)

// fillHalves puts $1 entries into the quarantine. The last entry failed now, and each
// earlier entry one second before the next one. The tenant of every second entry is
// "even", and the event type of the others is "odd". Every entry whose number is
// divisible by $2 has both.
const fillHalves = `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at, fingerprint, reason, tenant,
		event_type, last_failed_at)
	SELECT 'c', 't', 'm' || i, '', '', 'quarantined', now(), 'f', 'failed',
	       CASE WHEN i % 2 = 0 OR i % $2::bigint = 0 THEN 'even' ELSE 'other' END,
	       CASE WHEN i % 2 = 1 OR i % $2::bigint = 0 THEN 'odd' ELSE 'other' END, now() - ($1 - i) * interval '1 second'
	FROM generate_series(1, $1::bigint) AS i`

// Half of the entries match one condition, half match another, and few match both. A
// search with both conditions must read a limited number of rows. The same is true for
// a search for a period in which nearly all entries failed.
func TestSearchesWithSeveralConditionsReadABoundedNumberOfRows(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db, q := newCountedQuarantine(t)
	exec := func(query string, args ...any) {
		t.Helper()
		kit.Exec(t, db, query, args...)
	}
	exec(`ALTER TABLE once_parked SET (autovacuum_enabled = false)`)
	exec(`ANALYZE once_parked`)
	const entries = 200_000
	exec(fillHalves, entries, entries-1000)
	ago := func(seconds int) time.Time { return time.Now().Add(-time.Duration(seconds) * time.Second) }
	rarely := operate.Filter{Tenant: "even", EventType: "odd"}
	for _, known := range []string{"when it was empty", "now"} {
		for _, of := range []struct {
			filter operate.Filter
			want   int
			next   bool
			rows   int // that are read, at most
		}{
			{rarely, 0, true, 31_000},
			{operate.Filter{Tenant: "even", EventType: "odd", AfterID: int64(entries - 15_000)}, 1, false, 24_000},
			{operate.Filter{Tenant: "even", EventType: "none"}, 0, false, 11_000},
			{operate.Filter{Tenant: "even", Consumer: "c", Limit: 10}, 10, true, 21_000},
			{operate.Filter{Consumer: "c", Topic: "t", Reason: chain.ReasonGap}, 0, false, 100},
			{operate.Filter{FailedAfter: ago(entries + 1000), Limit: 10}, 10, true, 130_000},
			{operate.Filter{FailedAfter: ago(entries - 50_000), Limit: 10}, 0, true, 150_000},
			{operate.Filter{FailedAfter: ago(1000), Tenant: "even"}, 100, true, 3000},
			{operate.Filter{FailedAfter: ago(50_000), Tenant: "none"}, 0, false, 60_000},
		} {
			if of.rows >= entries {
				continue // with -short, the table is too small for this case
			}
			before := kit.RowsRead(t, db, "once_parked")
			page, err := q.List(t.Context(), of.filter)
			if err != nil || len(page.Rows) != of.want || page.Next > 0 != of.next {
				t.Errorf("the table was looked at %s: %+v: %d entries, next %d, %v", known, of.filter, len(page.Rows), page.Next, err)
			}
			if rows := kit.RowsRead(t, db, "once_parked") - before; rows > of.rows {
				t.Errorf("the table was looked at %s: %d rows for the list of %+v, want at most %d", known, rows, of.filter, of.rows)
			}
		}
		before := kit.RowsRead(t, db, "once_parked")
		if n, err := q.Count(t.Context(), rarely); err != nil || n.N != 0 || n.Next == 0 {
			t.Errorf("the table was looked at %s: counted %+v, %v", known, n, err)
		}
		counted := kit.RowsRead(t, db, "once_parked")
		if rows := counted - before; rows > 31_000 {
			t.Errorf("the table was looked at %s: %d rows for a count", known, rows)
		}
		if n, err := q.Count(t.Context(), operate.Filter{}); err != nil || n.N != 50_000 || n.Next != 50_000 {
			t.Errorf("the table was looked at %s: counted %+v, %v", known, n, err)
		}
		all := kit.RowsRead(t, db, "once_parked")
		if rows := all - counted; rows > 51_000 {
			t.Errorf("the table was looked at %s: %d rows for a count of all", known, rows)
		}
		groups, err := q.Groups(t.Context(), rarely)
		if err != nil || len(groups.Groups) != 1 || !groups.Partial || !groups.Groups[0].More {
			t.Errorf("the table was looked at %s: %+v, %v", known, groups, err)
		}
		if rows := kit.RowsRead(t, db, "once_parked") - all; rows > 31_000 {
			t.Errorf("the table was looked at %s: %d rows for groups", known, rows)
		}
		exec(`ANALYZE once_parked`)
	}
	exec(`UPDATE once_parked SET state = 'waiting', replays = 1`)
	exec(`ANALYZE once_parked`)
	before := kit.RowsRead(t, db, "once_parked")
	if page, err := q.Replayed(t.Context(), rarely); err != nil || len(page.Rows) != 0 || page.Next == 0 {
		t.Errorf("replayed are %+v, %v", page, err)
	}
	if rows := kit.RowsRead(t, db, "once_parked") - before; rows > 21_000 {
		t.Errorf("%d rows for replayed entries", rows)
	}
}
