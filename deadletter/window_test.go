package deadletter_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// fillLetters inserts dead letters. The last letter failed now, and each earlier letter
// one second before the next one. The tenant of every second letter is "even", and the
// event type of the other letters is "odd". Letters whose number is a multiple of rare
// have both this tenant and this event type.
func (b *bench) fillLetters(letters, rare int) {
	b.Helper()
	numbers, created, died := fmt.Sprintf(`generate_series(1, %d) AS s(i)`, letters), `now()`, `now() - (%d - i) * interval '1 second'`
	if b.sqlite() {
		numbers = fmt.Sprintf(`(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) SELECT i FROM n) AS s`, letters)
		created, died = `0`, `CAST(unixepoch('subsec') * 1000 AS INTEGER) - (%d - i) * 1000`
	}
	b.exec(fmt.Sprintf(`INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts,
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
	testkit.Long(t)
	t.Parallel()
	db := testkit.EmptyPostgres(t) // without the statistics of an earlier test's rows
	db.SetMaxOpenConns(1)          // RowsRead counts the reads of a single connection
	b := newBench(t, db.DB, schema.Config{})
	b.exec(`ALTER TABLE once_outbox_dead SET (autovacuum_enabled = false)`)
	b.exec(`ANALYZE once_outbox_dead`)
	const letters = 200_000
	b.fillLetters(letters, letters-1000)
	ago := func(seconds int) time.Time { return time.Now().Add(-time.Duration(seconds) * time.Second) }
	rarely := deadletter.Filter{Tenant: "even", EventType: "odd"}
	for _, known := range []string{"when it was empty", "now"} {
		for _, of := range []struct {
			filter deadletter.Filter
			want   int
			next   bool
			rows   int // that are read, at most
		}{
			{rarely, 0, true, 31_000},
			{deadletter.Filter{Tenant: "even", EventType: "odd", AfterID: int64(letters - 15_000)}, 1, false, 24_000},
			{deadletter.Filter{Tenant: "even", EventType: "none"}, 0, false, 11_000},
			{deadletter.Filter{Tenant: "even", Topic: "t", Limit: 10}, 10, true, 21_000},
			{deadletter.Filter{OrderingKey: "k", Limit: 10}, 10, true, 30_000},
			{deadletter.Filter{OrderingKey: "none"}, 0, false, 100},
			{deadletter.Filter{FailedAfter: ago(letters + 1000), Limit: 10}, 10, true, 130_000},
			{deadletter.Filter{FailedBefore: ago(-1000), Limit: 10}, 10, true, 130_000},
			{deadletter.Filter{FailedAfter: ago(letters - 50_000), Limit: 10}, 10, true, 130_000},
			{deadletter.Filter{FailedAfter: ago(1000), Tenant: "even"}, 100, true, 3000},
			{deadletter.Filter{FailedAfter: ago(50_000), Tenant: "none"}, 0, false, 60_000},
		} {
			if of.rows >= letters {
				continue // with -short, the table is too small for this case
			}
			before := testkit.RowsRead(t, db, "once_outbox_dead")
			page, err := b.letters.List(t.Context(), of.filter)
			if err != nil || len(page.Letters) != of.want || page.Next > 0 != of.next {
				t.Errorf("the table was looked at %s: %+v: %d letters, next %d, %v", known, of.filter, len(page.Letters), page.Next, err)
			}
			if rows := testkit.RowsRead(t, db, "once_outbox_dead") - before; rows > of.rows {
				t.Errorf("the table was looked at %s: %d rows for the list of %+v, want at most %d", known, rows, of.filter, of.rows)
			}
		}
		before := testkit.RowsRead(t, db, "once_outbox_dead")
		if n, err := b.letters.Count(t.Context(), rarely); err != nil || n.N != 0 || n.Next == 0 {
			t.Errorf("the table was looked at %s: counted %+v, %v", known, n, err)
		}
		counted := testkit.RowsRead(t, db, "once_outbox_dead")
		if rows := counted - before; rows > 31_000 {
			t.Errorf("the table was looked at %s: %d rows for a count", known, rows)
		}
		if n, err := b.letters.Count(t.Context(), deadletter.Filter{}); err != nil || n.N != 50_000 || n.Next != 50_000 {
			t.Errorf("the table was looked at %s: counted %+v, %v", known, n, err)
		}
		all := testkit.RowsRead(t, db, "once_outbox_dead")
		if rows := all - counted; rows > 51_000 {
			t.Errorf("the table was looked at %s: %d rows for a count of all", known, rows)
		}
		groups, err := b.letters.Groups(t.Context(), rarely)
		if err != nil || len(groups.Groups) != 1 || !groups.Partial || !groups.Groups[0].More {
			t.Errorf("the table was looked at %s: %+v, %v", known, groups, err)
		}
		if rows := testkit.RowsRead(t, db, "once_outbox_dead") - all; rows > 31_000 {
			t.Errorf("the table was looked at %s: %d rows for groups", known, rows)
		}
		b.exec(`ANALYZE once_outbox_dead`)
	}
}

// Together, all pages of a search contain each matching letter once, in the order of
// the IDs. The results of Count add up to the number of these letters.
func TestPagesOfLettersAreComplete(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(b *bench) {
		letters := testkit.Sized(25_000, 50_000)
		b.fillLetters(letters, 9_000)
		half := time.Now().Add(-time.Duration(letters/2) * time.Second)
		both := func(i int64) bool { return i%9_000 == 0 }
		for name, of := range map[string]struct {
			change func(f *deadletter.Filter)
			match  func(i int64) bool
		}{
			"two":   {func(*deadletter.Filter) {}, both},
			"three": {func(f *deadletter.Filter) { f.Topic = "none" }, func(int64) bool { return false }},
			"time":  {func(f *deadletter.Filter) { f.FailedAfter = half }, func(i int64) bool { return i > int64(letters/2) && both(i) }},
			"until": {func(f *deadletter.Filter) { f.UntilID = 18_000 }, func(i int64) bool { return i <= 18_000 && both(i) }},
			"key": {func(f *deadletter.Filter) { f.OrderingKey, f.FailedBefore = "k", half }, func(i int64) bool {
				return i <= int64(letters/2) && both(i)
			}},
		} {
			filter := deadletter.Filter{Tenant: "even", EventType: "odd"}
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
				if err != nil {
					b.Fatal(err)
				}
				for _, l := range page.Letters {
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
				if err != nil {
					b.Fatal(err)
				}
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
