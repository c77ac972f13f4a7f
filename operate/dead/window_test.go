package dead_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/schema"
)

// fillLetters inserts dead letters. The last letter failed now, and each earlier letter
// one second before the next one. The tenant of every second letter is "even", and the
// event type of the other letters is "odd". Letters whose number is a multiple of rare
// have both this tenant and this event type.
func (b *bench) fillLetters(letters, rare int) {
	b.Helper()
	numbers, created, died := fmt.Sprintf(`generate_series(1, %d) AS s(i)`, letters), `now()`, `now() - (%d - i) * interval '1 second'`
	if b.SQLite() {
		numbers = fmt.Sprintf(`(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) SELECT i FROM n) AS s`, letters)
		created, died = `0`, `CAST(unixepoch('subsec') * 1000 AS INTEGER) - (%d - i) * 1000`
	}
	b.Exec(fmt.Sprintf(`INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts,
			last_error, reason, unknown, tenant, event_type, died_at)
		SELECT i, 'm' || i, 't', 'k', '', '{}', %s, 20, 'no', 'exhausted', false,
		       CASE WHEN i %% 2 = 0 OR i %% %[2]d = 0 THEN 'even' ELSE 'other' END,
		       CASE WHEN i %% 2 = 1 OR i %% %[2]d = 0 THEN 'odd' ELSE 'other' END, `+died+`
		FROM %[4]s`, created, rare, letters, numbers))
}

// A search reads a limited number of rows, even if half of the letters match each of its
// two conditions and few letters match both. A search for a period in which nearly all
// letters failed reads a limited number of rows, too.
func TestSearchesWithSeveralConditionsReadABoundedNumberOfLetters(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.EmptyPostgres(t) // without the statistics of an earlier test's rows
	db.SetMaxOpenConns(1)      // RowsRead counts the reads of a single connection
	b := newBench(t, db, schema.Config{})
	b.Exec(`ALTER TABLE once_outbox_dead SET (autovacuum_enabled = false)`)
	b.Exec(`ANALYZE once_outbox_dead`)
	const letters = 200_000
	b.fillLetters(letters, letters-1000)
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
			{operate.Filter{Tenant: "even", EventType: "odd", AfterID: int64(letters - 15_000)}, 1, false, 24_000},
			{operate.Filter{Tenant: "even", EventType: "none"}, 0, false, 11_000},
			{operate.Filter{Tenant: "even", Topic: "t", Limit: 10}, 10, true, 21_000},
			{operate.Filter{OrderingKey: "k", Limit: 10}, 10, true, 30_000},
			{operate.Filter{OrderingKey: "none"}, 0, false, 100},
			{operate.Filter{FailedAfter: ago(letters + 1000), Limit: 10}, 10, true, 130_000},
			{operate.Filter{FailedBefore: ago(-1000), Limit: 10}, 10, true, 130_000},
			{operate.Filter{FailedAfter: ago(letters - 50_000), Limit: 10}, 10, true, 130_000},
			{operate.Filter{FailedAfter: ago(1000), Tenant: "even"}, 100, true, 3000},
			{operate.Filter{FailedAfter: ago(50_000), Tenant: "none"}, 0, false, 60_000},
		} {
			if of.rows >= letters {
				continue // with -short, the table is too small for this case
			}
			before := kit.RowsRead(t, db, "once_outbox_dead")
			page, err := b.letters.List(t.Context(), of.filter)
			if err != nil || len(page.Rows) != of.want || page.Next > 0 != of.next {
				t.Errorf("the table was looked at %s: %+v: %d letters, next %d, %v", known, of.filter, len(page.Rows), page.Next, err)
			}
			if rows := kit.RowsRead(t, db, "once_outbox_dead") - before; rows > of.rows {
				t.Errorf("the table was looked at %s: %d rows for the list of %+v, want at most %d", known, rows, of.filter, of.rows)
			}
		}
		before := kit.RowsRead(t, db, "once_outbox_dead")
		if n, err := b.letters.Count(t.Context(), rarely); err != nil || n.N != 0 || n.Next == 0 {
			t.Errorf("the table was looked at %s: counted %+v, %v", known, n, err)
		}
		counted := kit.RowsRead(t, db, "once_outbox_dead")
		if rows := counted - before; rows > 31_000 {
			t.Errorf("the table was looked at %s: %d rows for a count", known, rows)
		}
		if n, err := b.letters.Count(t.Context(), operate.Filter{}); err != nil || n.N != 50_000 || n.Next != 50_000 {
			t.Errorf("the table was looked at %s: counted %+v, %v", known, n, err)
		}
		all := kit.RowsRead(t, db, "once_outbox_dead")
		if rows := all - counted; rows > 51_000 {
			t.Errorf("the table was looked at %s: %d rows for a count of all", known, rows)
		}
		groups, err := b.letters.Groups(t.Context(), rarely)
		if err != nil || len(groups.Groups) != 1 || !groups.Partial || !groups.Groups[0].More {
			t.Errorf("the table was looked at %s: %+v, %v", known, groups, err)
		}
		if rows := kit.RowsRead(t, db, "once_outbox_dead") - all; rows > 31_000 {
			t.Errorf("the table was looked at %s: %d rows for groups", known, rows)
		}
		b.Exec(`ANALYZE once_outbox_dead`)
	}
}

// Together, all pages of a search contain each matching letter once, in the order of
// the IDs. The results of Count add up to the number of these letters.
func TestPagesOfLettersAreComplete(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		letters := kit.Sized(25_000, 50_000)
		b.fillLetters(letters, 9_000)
		half := time.Now().Add(-time.Duration(letters/2) * time.Second)
		both := func(i int64) bool { return i%9_000 == 0 }
		for name, of := range map[string]struct {
			change func(f *operate.Filter)
			match  func(i int64) bool
		}{
			"two":   {func(*operate.Filter) {}, both},
			"three": {func(f *operate.Filter) { f.Topic = "none" }, func(int64) bool { return false }},
			"time":  {func(f *operate.Filter) { f.FailedAfter = half }, func(i int64) bool { return i > int64(letters/2) && both(i) }},
			"until": {func(f *operate.Filter) { f.UntilID = 18_000 }, func(i int64) bool { return i <= 18_000 && both(i) }},
			"key": {func(f *operate.Filter) { f.OrderingKey, f.FailedBefore = "k", half }, func(i int64) bool {
				return i <= int64(letters/2) && both(i)
			}},
		} {
			filter := operate.Filter{Tenant: "even", EventType: "odd"}
			of.change(&filter)
			var ids, want []int64
			for i := range int64(letters) {
				if of.match(i + 1) {
					want = append(want, i+1)
				}
			}
			filter.Limit = 2
			pages := 0
			for f := filter; ; {
				page, err := b.letters.List(b.Context(), f)
				kit.OK(b, err)
				for _, l := range page.Rows {
					ids = append(ids, l.ID)
				}
				pages++
				if f.AfterID = page.Next; page.Next == 0 {
					break
				}
			}
			n := 0
			filter.Limit = 0
			for f := filter; ; {
				part, err := b.letters.Count(b.Context(), f)
				kit.OK(b, err)
				if n, f.AfterID = n+part.N, part.Next; part.Next == 0 {
					break
				}
			}
			if !slices.Equal(ids, want) || n != len(want) {
				b.Errorf("%s: %d pages have the IDs %v, and %d are counted, want %v", name, pages, ids, n, want)
			}
			var exported strings.Builder
			if n, err := b.letters.Export(b.Context(), filter, &exported); n != len(want) || err != nil {
				b.Errorf("%s: %d letters are exported, %v, want %d", name, n, err, len(want))
			}
		}
	})
}

// If an index can find the dead letters of a list, PostgreSQL reads only these letters,
// both with the statistics of the empty table and with new statistics. The rare values
// are at the end of the table.
func TestListReadsOnlyMatchingLetters(t *testing.T) {
	t.Parallel()
	db := kit.EmptyPostgres(t) // without the statistics of an earlier test's rows
	db.SetMaxOpenConns(1)      // RowsRead counts the reads of a single connection
	b := newBench(t, db, schema.Config{})
	b.Exec(`ALTER TABLE once_outbox_dead SET (autovacuum_enabled = false)`)
	b.Exec(`ANALYZE once_outbox_dead`)
	b.Exec(`INSERT INTO once_outbox_dead (position, message_id, topic, payload, metadata, created_at, attempts, last_error, reason, unknown,
			tenant, event_type, aggregate_type, aggregate_id, fingerprint, died_at)
		SELECT i, 'm' || i, v, '', '{}', now(), 20, v, CASE v WHEN 'rare' THEN 'invalid' ELSE 'exhausted' END, false, v, v, v, v, v,
		       now() - (30001 - i) * interval '1 minute'
		FROM generate_series(1, 30000) AS i, LATERAL (SELECT CASE WHEN i > 29990 THEN 'rare' ELSE 'usual' END AS v) AS parts`)
	var late time.Time // time of the last ten letters
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT died_at FROM once_outbox_dead WHERE id = 29991`).Scan(&late))
	for _, known := range []string{"when it was empty", "now"} {
		for _, of := range []struct {
			filter operate.Filter
			want   int
		}{
			{operate.Filter{Topic: "rare"}, 10},
			{operate.Filter{Tenant: "rare"}, 10},
			{operate.Filter{EventType: "rare"}, 10},
			{operate.Filter{AggregateType: "rare"}, 10},
			{operate.Filter{AggregateType: "none"}, 0},
			{operate.Filter{AggregateID: "rare"}, 10},
			{operate.Filter{AggregateID: "rare", AggregateType: "usual"}, 0},
			{operate.Filter{Reason: dead.ReasonInvalid}, 10},
			{operate.Filter{Fingerprint: "rare"}, 10},
			{operate.Filter{Fingerprint: "none"}, 0},
			{operate.Filter{Topic: "usual", Limit: 10}, 10},
			{operate.Filter{FailedAfter: late}, 10},
			{operate.Filter{FailedAfter: late.Add(-4 * time.Minute), Tenant: "usual"}, 4},
		} {
			before := kit.RowsRead(t, db, "once_outbox_dead")
			page, err := b.letters.List(t.Context(), of.filter)
			if err != nil || len(page.Rows) != of.want {
				t.Fatalf("%+v: %d letters, %v", of.filter, len(page.Rows), err)
			}
			listed := kit.RowsRead(t, db, "once_outbox_dead")
			if rows := listed - before; rows > 100 {
				t.Errorf("the table was looked at %s: %d rows for the list of %+v", known, rows, of.filter)
			}
			if of.filter.Limit > 0 {
				continue // Groups reads all letters that match
			}
			kit.OK(t, kit.Err(b.letters.Groups(t.Context(), of.filter)))
			if rows := kit.RowsRead(t, db, "once_outbox_dead") - listed; rows > 200 {
				t.Errorf("the table was looked at %s: %d rows for the groups of %+v", known, rows, of.filter)
			}
		}
		before := kit.RowsRead(t, db, "once_outbox_dead")
		if n, err := b.letters.Count(t.Context(), operate.Filter{Topic: "usual", Limit: 50}); n.N != 50 || err != nil {
			t.Fatalf("%d letters are counted, %v, want 50", n.N, err)
		}
		if rows := kit.RowsRead(t, db, "once_outbox_dead") - before; rows > 200 {
			t.Errorf("the table was looked at %s: %d rows for a count of 50", known, rows)
		}
		b.Exec(`ANALYZE once_outbox_dead`)
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
				kit.Long(t)
			}
			t.Parallel()
			db := kit.EmptyPostgres(t) // without the statistics of an earlier test's rows
			db.SetMaxOpenConns(1)      // RowsRead counts the reads of a single connection
			b := newBench(t, db, schema.Config{Sent: layout})
			b.Exec(`ALTER TABLE ` + table + ` SET (autovacuum_enabled = false)`)
			b.Exec(`ANALYZE once_outbox_sent`)
			b.Exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, tenant, event_type, aggregate_type,
					aggregate_id, sent_at)
				SELECT i, 'm' || i, v, '', '{}', now(), v, v, v, CASE WHEN i % 2 = 0 THEN 'hot' ELSE v || i END,
				       now() - (120001 - i) * interval '3 seconds'
				FROM generate_series(1, 120000) AS i, LATERAL (SELECT CASE WHEN i > 119990 THEN 'rare' ELSE 'usual' END AS v) AS parts`)
			var late, early time.Time // of the last and of the first ten
			kit.OK(t, db.QueryRowContext(t.Context(), `SELECT MAX(sent_at) FILTER (WHERE id = 119991), MAX(sent_at) FILTER (WHERE id = 11)
				FROM once_outbox_sent`).Scan(&late, &early))
			const part = 50_000
			for _, known := range []string{"when it was empty", "now"} {
				for _, of := range []struct {
					filter operate.Filter
					want   int
					next   int64
					rows   int // that are read, at most
				}{
					{operate.Filter{Topic: "rare"}, 0, part, 2*part + 100},
					{operate.Filter{Tenant: "rare"}, 0, part, 2*part + 100},
					{operate.Filter{EventType: "rare"}, 0, part, 2*part + 100},
					{operate.Filter{AggregateType: "none"}, 0, part, 2*part + 100},
					{operate.Filter{OrderingKey: "none"}, 0, part, 2*part + 100},
					{operate.Filter{Tenant: "rare", AfterID: part}, 0, 2 * part, 2*part + 100},
					{operate.Filter{Tenant: "rare", AfterID: 2 * part}, 10, 0, part},
					{operate.Filter{Tenant: "rare", UntilID: 20}, 0, 0, 100},
					{operate.Filter{Topic: "usual", AfterID: 70_000, Limit: 10}, 10, 70_010, part + 100},
					{operate.Filter{MessageID: "m119999"}, 1, 0, 100},
					{operate.Filter{AggregateID: "rare119991"}, 1, 0, 100},
					{operate.Filter{AggregateID: "rare119991", AggregateType: "usual"}, 0, 0, 100},
					{operate.Filter{AggregateID: "hot", Limit: 10}, 10, 20, part + 6000},
					{operate.Filter{AggregateID: "hot", Topic: "rare"}, 0, part, 2*part + 6000},
					{operate.Filter{SentAfter: late}, 10, 0, 1000},
					{operate.Filter{SentAfter: late, Tenant: "none"}, 0, 0, 1000},
					{operate.Filter{SentBefore: early, Limit: 10}, 10, 10, 1000},
					{operate.Filter{SentBefore: early, Tenant: "none"}, 0, 0, 1000},
					{operate.Filter{SentAfter: late.Add(time.Hour)}, 0, 0, 1000},
					{operate.Filter{SentBefore: early.Add(-time.Hour)}, 0, 0, 1000},
				} {
					before := kit.RowsRead(t, db, table)
					page, err := b.log.List(t.Context(), of.filter)
					if err != nil || len(page.Rows) != of.want || page.Next != of.next {
						t.Errorf("the table was looked at %s: %+v: %d messages, next %d, %v", known, of.filter, len(page.Rows), page.Next, err)
					}
					if rows := kit.RowsRead(t, db, table) - before; rows > of.rows {
						t.Errorf("the table was looked at %s: %d rows for the list of %+v, want at most %d", known, rows, of.filter, of.rows)
					}
				}
				b.Exec(`ANALYZE once_outbox_sent`)
			}
		})
	}
}

// All pages of a search together contain the same messages as a search without pages, in
// the order of their IDs.
func TestPagesOfTheSentLogAreComplete(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	eachSentLog(t, func(b *bench) {
		rows := `SELECT i, 'm' || i, CASE WHEN i % 20000 = 0 THEN 'rare' ELSE 'usual' END, '', '{}', 0 FROM generate_series(1, 110000) AS i`
		if b.SQLite() {
			rows = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 110000)
				SELECT i, 'm' || i, CASE WHEN i % 20000 = 0 THEN 'rare' ELSE 'usual' END, '', '{}', 0 FROM n`
		} else {
			rows = strings.Replace(rows, ", 0 FROM", ", now() FROM", 1)
		}
		b.Exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at) ` + rows)
		var ids []int64
		pages := 0
		for f := (operate.Filter{Topic: "rare", Limit: 2}); ; pages++ {
			page := b.sentPage(f)
			for _, m := range page.Rows {
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
		if n, err := b.log.Export(b.Context(), operate.Filter{Topic: "rare"}, &exported); n != 5 || err != nil {
			b.Errorf("%d messages are exported, %v, want 5", n, err)
		}
	})
}
