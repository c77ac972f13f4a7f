package deadletter_test

import (
	"testing"
	"time"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// A list of dead letters that an index finds reads only these, with the statistics of the
// empty table and with fresh ones. The rare values are at the end of the table.
func TestListReadsOnlyMatchingLetters(t *testing.T) {
	t.Parallel()
	db := testkit.EmptyPostgres(t) // without the statistics of an earlier test's rows
	db.SetMaxOpenConns(1)          // RowsRead counts the reads of a single connection
	b := newBench(t, db.DB, schema.Config{})
	b.exec(`ALTER TABLE once_outbox_dead SET (autovacuum_enabled = false)`)
	b.exec(`ANALYZE once_outbox_dead`)
	b.exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown,
			tenant, event_type, died_at)
		SELECT i, 'm' || i, v, '', '{}', now(), 20, v, CASE v WHEN 'rare' THEN 'invalid' ELSE 'exhausted' END, false, v, v,
		       now() - (30001 - i) * interval '1 minute'
		FROM generate_series(1, 30000) AS i, LATERAL (SELECT CASE WHEN i > 29990 THEN 'rare' ELSE 'usual' END AS v) AS parts`)
	var late time.Time // of the last ten
	if err := db.QueryRowContext(t.Context(), `SELECT died_at FROM once_outbox_dead WHERE id = 29991`).Scan(&late); err != nil {
		t.Fatal(err)
	}
	for _, known := range []string{"when it was empty", "now"} {
		for _, of := range []struct {
			filter deadletter.Filter
			want   int
		}{
			{deadletter.Filter{Topic: "rare"}, 10},
			{deadletter.Filter{Tenant: "rare"}, 10},
			{deadletter.Filter{EventType: "rare"}, 10},
			{deadletter.Filter{Reason: deadletter.ReasonInvalid}, 10},
			{deadletter.Filter{Fingerprint: "invalid: rare"}, 10},
			{deadletter.Filter{Fingerprint: "invalid: none"}, 0},
			{deadletter.Filter{Topic: "usual", Limit: 10}, 10},
			{deadletter.Filter{FailedAfter: late}, 10},
			{deadletter.Filter{FailedAfter: late.Add(-4 * time.Minute), Tenant: "usual"}, 4},
		} {
			before := testkit.RowsRead(t, db, "once_outbox_dead")
			letters, err := b.letters.List(t.Context(), of.filter)
			if err != nil || len(letters) != of.want {
				t.Fatalf("%+v: %d letters, %v", of.filter, len(letters), err)
			}
			listed := testkit.RowsRead(t, db, "once_outbox_dead")
			if rows := listed - before; rows > 100 {
				t.Errorf("the table was looked at %s: %d rows for the list of %+v", known, rows, of.filter)
			}
			if of.filter.Limit > 0 {
				continue // groups are of all
			}
			if _, err := b.letters.Groups(t.Context(), of.filter); err != nil {
				t.Fatal(err)
			}
			if rows := testkit.RowsRead(t, db, "once_outbox_dead") - listed; rows > 200 {
				t.Errorf("the table was looked at %s: %d rows for the groups of %+v", known, rows, of.filter)
			}
		}
		b.exec(`ANALYZE once_outbox_dead`)
	}
}
