package deadletter_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// If an index can find the dead letters of a list, PostgreSQL reads only these letters,
// both with the statistics of the empty table and with new statistics. The rare values
// are at the end of the table.
func TestListReadsOnlyMatchingLetters(t *testing.T) {
	t.Parallel()
	db := testkit.EmptyPostgres(t) // without the statistics of an earlier test's rows
	db.SetMaxOpenConns(1)          // RowsRead counts the reads of a single connection
	b := newBench(t, db.DB, schema.Config{})
	b.exec(`ALTER TABLE once_outbox_dead SET (autovacuum_enabled = false)`)
	b.exec(`ANALYZE once_outbox_dead`)
	b.exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown,
			tenant, event_type, aggregate_type, aggregate_id, died_at)
		SELECT i, 'm' || i, v, '', '{}', now(), 20, v, CASE v WHEN 'rare' THEN 'invalid' ELSE 'exhausted' END, false, v, v, v, v,
		       now() - (30001 - i) * interval '1 minute'
		FROM generate_series(1, 30000) AS i, LATERAL (SELECT CASE WHEN i > 29990 THEN 'rare' ELSE 'usual' END AS v) AS parts`)
	var late time.Time // time of the last ten letters
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
			{deadletter.Filter{AggregateType: "rare"}, 10},
			{deadletter.Filter{AggregateType: "none"}, 0},
			{deadletter.Filter{AggregateID: "rare"}, 10},
			{deadletter.Filter{AggregateID: "rare", AggregateType: "usual"}, 0},
			{deadletter.Filter{Reason: deadletter.ReasonInvalid}, 10},
			{deadletter.Filter{Fingerprint: "invalid: rare"}, 10},
			{deadletter.Filter{Fingerprint: "invalid: none"}, 0},
			{deadletter.Filter{Topic: "usual", Limit: 10}, 10},
			{deadletter.Filter{FailedAfter: late}, 10},
			{deadletter.Filter{FailedAfter: late.Add(-4 * time.Minute), Tenant: "usual"}, 4},
		} {
			before := testkit.RowsRead(t, db, "once_outbox_dead")
			page, err := b.letters.List(t.Context(), of.filter)
			if err != nil || len(page.Letters) != of.want {
				t.Fatalf("%+v: %d letters, %v", of.filter, len(page.Letters), err)
			}
			listed := testkit.RowsRead(t, db, "once_outbox_dead")
			if rows := listed - before; rows > 100 {
				t.Errorf("the table was looked at %s: %d rows for the list of %+v", known, rows, of.filter)
			}
			if of.filter.Limit > 0 {
				continue // Groups reads all letters that match
			}
			if _, err := b.letters.Groups(t.Context(), of.filter); err != nil {
				t.Fatal(err)
			}
			if rows := testkit.RowsRead(t, db, "once_outbox_dead") - listed; rows > 200 {
				t.Errorf("the table was looked at %s: %d rows for the groups of %+v", known, rows, of.filter)
			}
		}
		before := testkit.RowsRead(t, db, "once_outbox_dead")
		if n, err := b.letters.Count(t.Context(), deadletter.Filter{Topic: "usual", Limit: 50}); n.N != 50 || err != nil {
			t.Fatalf("%d letters are counted, %v, want 50", n.N, err)
		}
		if rows := testkit.RowsRead(t, db, "once_outbox_dead") - before; rows > 200 {
			t.Errorf("the table was looked at %s: %d rows for a count of 50", known, rows)
		}
		b.exec(`ANALYZE once_outbox_dead`)
	}
}

// If few rows of the sent log match, or none, List reads a limited number of rows, and
// returns where the next page begins. With Filter.SentAfter, List does not read the
// rows before that time.
func TestListOfTheSentLogReadsABoundedNumberOfRows(t *testing.T) {
	t.Parallel()
	for layout, table := range map[schema.Layout]string{schema.Plain: "once_outbox_sent", schema.ByDay: "once_outbox_sent_first"} {
		t.Run("layout "+string(layout), func(t *testing.T) {
			if layout != schema.Plain {
				testkit.Long(t)
			}
			t.Parallel()
			db := testkit.EmptyPostgres(t) // without the statistics of an earlier test's rows
			db.SetMaxOpenConns(1)          // RowsRead counts the reads of a single connection
			b := newBench(t, db.DB, schema.Config{Sent: layout})
			b.exec(`ALTER TABLE ` + table + ` SET (autovacuum_enabled = false)`)
			b.exec(`ANALYZE once_outbox_sent`)
			b.exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, tenant, event_type, aggregate_type,
					aggregate_id, sent_at)
				SELECT i, 'm' || i, v, '', '{}', now(), v, v, v, CASE WHEN i % 2 = 0 THEN 'hot' ELSE v || i END,
				       now() - (120001 - i) * interval '3 seconds'
				FROM generate_series(1, 120000) AS i, LATERAL (SELECT CASE WHEN i > 119990 THEN 'rare' ELSE 'usual' END AS v) AS parts`)
			var late, early time.Time // of the last and of the first ten
			if err := db.QueryRowContext(t.Context(), `SELECT MAX(sent_at) FILTER (WHERE id = 119991), MAX(sent_at) FILTER (WHERE id = 11)
				FROM once_outbox_sent`).Scan(&late, &early); err != nil {
				t.Fatal(err)
			}
			const part = 50_000
			for _, known := range []string{"when it was empty", "now"} {
				for _, of := range []struct {
					filter deadletter.Filter
					want   int
					next   int64
					rows   int // that are read, at most
				}{
					{deadletter.Filter{Topic: "rare"}, 0, part, 2*part + 100},
					{deadletter.Filter{Tenant: "rare"}, 0, part, 2*part + 100},
					{deadletter.Filter{EventType: "rare"}, 0, part, 2*part + 100},
					{deadletter.Filter{AggregateType: "none"}, 0, part, 2*part + 100},
					{deadletter.Filter{OrderingKey: "none"}, 0, part, 2*part + 100},
					{deadletter.Filter{Tenant: "rare", AfterID: part}, 0, 2 * part, 2*part + 100},
					{deadletter.Filter{Tenant: "rare", AfterID: 2 * part}, 10, 0, part},
					{deadletter.Filter{Tenant: "rare", UntilID: 20}, 0, 0, 100},
					{deadletter.Filter{Topic: "usual", AfterID: 70_000, Limit: 10}, 10, 70_010, part + 100},
					{deadletter.Filter{MessageID: "m119999"}, 1, 0, 100},
					{deadletter.Filter{AggregateID: "rare119991"}, 1, 0, 100},
					{deadletter.Filter{AggregateID: "rare119991", AggregateType: "usual"}, 0, 0, 100},
					{deadletter.Filter{AggregateID: "hot", Limit: 10}, 10, 20, part + 6000},
					{deadletter.Filter{AggregateID: "hot", Topic: "rare"}, 0, part, 2*part + 6000},
					{deadletter.Filter{SentAfter: late}, 10, 0, 1000},
					{deadletter.Filter{SentAfter: late, Tenant: "none"}, 0, 0, 1000},
					{deadletter.Filter{SentBefore: early, Limit: 10}, 10, 10, 1000},
					{deadletter.Filter{SentBefore: early, Tenant: "none"}, 0, 0, 1000},
					{deadletter.Filter{SentAfter: late.Add(time.Hour)}, 0, 0, 1000},
					{deadletter.Filter{SentBefore: early.Add(-time.Hour)}, 0, 0, 1000},
				} {
					before := testkit.RowsRead(t, db, table)
					page, err := b.log.List(t.Context(), of.filter)
					if err != nil || len(page.Messages) != of.want || page.Next != of.next {
						t.Errorf("the table was looked at %s: %+v: %d messages, next %d, %v", known, of.filter, len(page.Messages), page.Next, err)
					}
					if rows := testkit.RowsRead(t, db, table) - before; rows > of.rows {
						t.Errorf("the table was looked at %s: %d rows for the list of %+v, want at most %d", known, rows, of.filter, of.rows)
					}
				}
				b.exec(`ANALYZE once_outbox_sent`)
			}
		})
	}
}

// All pages of a search together contain the same messages as a search without pages, in
// the order of their IDs.
func TestPagesOfTheSentLogAreComplete(t *testing.T) {
	t.Parallel()
	eachSentLog(t, func(b *bench) {
		rows := `SELECT i, 'm' || i, CASE WHEN i % 20000 = 0 THEN 'rare' ELSE 'usual' END, '', '{}', 0 FROM generate_series(1, 110000) AS i`
		if b.sqlite() {
			rows = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 110000)
				SELECT i, 'm' || i, CASE WHEN i % 20000 = 0 THEN 'rare' ELSE 'usual' END, '', '{}', 0 FROM n`
		} else {
			rows = strings.Replace(rows, ", 0 FROM", ", now() FROM", 1)
		}
		b.exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at) ` + rows)
		var ids []int64
		pages := 0
		for f := (deadletter.Filter{Topic: "rare", Limit: 2}); ; pages++ {
			page := b.sentPage(f)
			for _, m := range page.Messages {
				ids = append(ids, m.ID)
			}
			if f.AfterID = page.Next; page.Next == 0 {
				break
			}
		}
		if want := []int64{20_000, 40_000, 60_000, 80_000, 100_000}; !slices.Equal(ids, want) || pages != 2 {
			b.Errorf("%d pages have the IDs %v, want %v on 2 pages before the last", pages, ids, want)
		}
		var exported strings.Builder
		if n, err := b.log.Export(b.Context(), deadletter.Filter{Topic: "rare"}, &exported); n != 5 || err != nil {
			b.Errorf("%d messages are exported, %v, want 5", n, err)
		}
	})
}
