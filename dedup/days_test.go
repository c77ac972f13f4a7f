package dedup_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

const oneDay = 24 * time.Hour

// newDays returns a bench with the layout schema.ByDay.
func newDays(t *testing.T) *bench {
	t.Helper()
	kit.WithinADay(t)
	return newBenchIn(t, kit.Postgres(t), schema.Config{Inbox: schema.ByDay}, nil)
}

// idAt returns an id that outbox.NewID could have returned the given time ago. A
// negative time means an id of the future.
func idAt(ago time.Duration) string {
	ms := fmt.Sprintf("%012x", time.Now().Add(-ago).UnixMilli())
	return ms[:8] + "-" + ms[8:] + uuid.Must(uuid.NewV7()).String()[13:]
}

func nameOf(begin time.Time) string { return "once_inbox_" + begin.Format("20060102") }

// past creates the partition of an earlier day, with rows that were handled on that
// day. days says how many days ago that was.
func (b *bench) past(days, rows int) (name string) {
	b.Helper()
	begin := time.Now().UTC().Truncate(oneDay).AddDate(0, 0, -days)
	lower, upper := idAt(time.Since(begin))[:13], idAt(time.Since(begin.Add(oneDay)))[:13]
	name = nameOf(begin)
	// One transaction creates the partition and its rows, because a sweep may run at
	// the same time.
	b.Exec(fmt.Sprintf(`BEGIN;
		CREATE TABLE %s PARTITION OF once_inbox FOR VALUES FROM ('%s') TO ('%s');
		INSERT INTO %[1]s (message_id, consumer, digest, processed_at)
		SELECT '%[2]s-7000-8000-' || lpad(to_hex(n), 12, '0'), 'payments', '', now() - %[4]d * interval '1 day'
		FROM generate_series(1, %d) AS n;
		COMMIT`, name, lower, upper, days, rows))
	return name
}

func (b *bench) tables() (names []string) {
	b.Helper()
	return kit.Lines(b, b, `
		SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'once_inbox'::regclass ORDER BY 1`)
}

func (b *bench) has(table string) bool {
	b.Helper()
	return slices.Contains(b.tables(), table)
}

// home returns the partition that contains the row of an id.
func (b *bench) home(id string) (name string) {
	b.Helper()
	err := b.QueryRowContext(b.Context(), `SELECT tableoid::regclass::text FROM once_inbox WHERE message_id = $1`, id).Scan(&name)
	if err != nil {
		b.Fatalf("%s: %v", id, err)
	}
	return name
}

func (b *bench) park(id, state string) {
	b.Helper()
	d := &parkedrows.Delivery{Consumer: consumer, Topic: "t"}
	_, err := b.store().Quarantine(b.Context(), d, message.NewMessage(id, nil), parkedrows.Failure{Err: errHandler}, nil)
	kit.OK(b, err)
	b.Exec(`UPDATE once_parked SET state = $1, finished_at = CASE WHEN $1 IN ('resolved', 'discarded') THEN now() END
		WHERE message_id = $2`, state, id)
}

func TestDaysGetPartitionsBeforeTheyBegin(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	if got := b.tables(); !slices.Equal(got, []string{"once_inbox_default"}) {
		t.Fatalf("before the first sweep there are %v", got)
	}
	now, tomorrow := outbox.NewID(), idAt(-oneDay)
	b.handle(apply, now, tomorrow)
	b.sweep()
	today := time.Now().UTC().Truncate(oneDay)
	want := []string{"once_inbox_default"}
	for n := range 7 {
		want = append(want, nameOf(today.AddDate(0, 0, n+1)))
	}
	slices.Sort(want)
	if got := b.tables(); !slices.Equal(got, want) {
		t.Fatalf("there are %v, want %v", got, want)
	}
	b.sweep()
	if got := b.tables(); !slices.Equal(got, want) {
		t.Fatalf("the next sweep leaves %v", got)
	}

	// Rows that arrived before their partition was created must have moved there, and
	// must be found.
	next := idAt(-oneDay)
	b.handle(apply, now, tomorrow, next, next)
	b.expect(3, 3, 0)
	for id, day := range map[string]string{
		now: "once_inbox_default", tomorrow: nameOf(today.AddDate(0, 0, 1)), next: nameOf(today.AddDate(0, 0, 1)),
	} {
		if got := b.home(id); got != day {
			t.Errorf("%s is in %s, want %s", id, got, day)
		}
	}
}

// The partition of a row depends only on its id. So a duplicate must find the row
// before its day gets a partition, after that, and after the partition was dropped.
func TestDuplicateIsFoundInEveryPartition(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	old, today := b.past(40, 3), b.past(0, 0)
	ids := []string{
		outbox.NewID(), idAt(40 * oneDay), idAt(-2 * oneDay), idAt(365 * oneDay), idAt(-365 * oneDay), strings.ToUpper(outbox.NewID()),
		uuid.NewString(), "01JD3V6ZQ8X5Y7W9T2R4K6M8N0", "gWeJH4wYpTTk3v", "order-17", "ffffffff-ffff-7fff-bfff-ffffffffffff",
		"!", "ünïcode", "key:" + outbox.NewID(),
	}
	for range 3 {
		b.handle(apply, ids...)
		b.sweep()
	}
	b.handle(apply, ids...)
	b.expect(len(ids), len(ids), 0) // no rows of the three expired days are left
	for n, id := range ids {
		want := "once_inbox_default"
		if n < 3 {
			want = []string{today, old, nameOf(time.Now().UTC().AddDate(0, 0, 2))}[n]
		}
		if got := b.home(id); got != want {
			t.Errorf("%s is in %s, want %s", id, got, want)
		}
	}
	b.age(31 * oneDay)
	b.handle(apply, "new")
	b.sweep()
	if b.has(old) || !b.has(today) {
		t.Errorf("there are %v", b.tables())
	}
	b.WantCount(1, `once_inbox_default`)
}

func TestExpiredDayIsDropped(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	old, edge := b.past(32, kit.Sized(5000, 20_000)), b.past(30, 3000)
	b.Exec(`UPDATE once_inbox_default SET processed_at = now()`)
	if n := b.sweep(); n > 2000 {
		t.Errorf("%d rows were deleted one by one", n)
	}
	if b.has(old) || !b.has(edge) || b.Count(edge) != 3000 {
		t.Fatalf("there are %v", b.tables())
	}
	b.Exec(`UPDATE once_inbox SET processed_at = now() - interval '40 days'`)
	b.sweep()
	if !b.has(edge) || b.Count(edge) != 3000 {
		t.Fatal("a day was dropped too early")
	}
}

// Trap 36. A message may be handled much later than on the day of its id, and a parked
// message may be handled again. The inbox must remember the ids of both for as long as
// any other id.
func TestNeededRowsOfAnExpiredDayStay(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	old := b.past(40, 5000)
	ids := make([]string, 5)
	for n := range ids {
		ids[n] = idAt(40 * oneDay)
	}
	b.handle(apply, ids...)
	b.Exec(`UPDATE once_inbox SET processed_at = now() - interval '40 days' WHERE message_id <> $1 AND message_id <> $2`, ids[0], ids[1])
	b.Exec(`UPDATE once_inbox SET processed_at = now() - interval '29 days' WHERE message_id = $1`, ids[1])
	b.park(ids[2], "waiting")
	b.park(ids[3], "quarantined")
	b.park(ids[4], "resolved")
	b.sweep()
	if n := b.Count(old); n != 4 {
		t.Fatalf("%d rows are left of the old day, want 4", n)
	}
	b.handle(apply, ids[:4]...)
	b.expect(5, 4, 0)

	b.age(31 * oneDay)
	b.sweep()
	if n := b.Count(old); n != 2 {
		t.Fatalf("%d rows are left of the old day, want the two that may run", n)
	}
	b.Exec(`DELETE FROM once_parked`)
	b.sweep()
	if b.has(old) {
		t.Error("an empty expired day was not dropped")
	}
	b.handle(apply, ids[0], ids[0]) // the removed id counts as new
	b.expect(6, 1, 0)
}

// If too many rows of a day must remain, its expired rows must be deleted one by one.
func TestDayWithManyNeededRowsIsSweptByRow(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newDays(t)
	old := b.past(40, 30_000)
	b.Exec(`UPDATE once_inbox SET processed_at = now() WHERE right(message_id, 4) < '6000'`)
	kept := b.Count(`once_inbox WHERE processed_at > now() - interval '1 day'`)
	if n := b.sweep(); int(n) != 30_000-kept || b.Count(old) != kept || kept < 20_000 {
		t.Errorf("%d rows were removed, %d are left, want %d", n, b.Count(old), kept)
	}
}

// If too many ids have arrived before their day got a partition, they must stay in the
// default partition. The other days must still get their partitions.
func TestDayWithTooManyRowsGetsNoPartition(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest)
		SELECT $1 || lpad(to_hex(n), 12, '0'), 'payments', '' FROM generate_series(1, 20000) AS n`, idAt(-oneDay)[:24])
	b.sweep()
	tomorrow := time.Now().UTC().AddDate(0, 0, 1)
	if b.has(nameOf(tomorrow)) || !b.has(nameOf(tomorrow.AddDate(0, 0, 1))) || len(b.tables()) != 7 {
		t.Errorf("there are %v", b.tables())
	}
	id := idAt(-oneDay)
	b.handle(apply, id, id)
	b.expect(1, 20_001, 0)
}

func TestLayoutByDayNeedsAPartitionedInbox(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	days, err := dedup.New(b.DB, dedup.Config{Schema: schema.Config{Inbox: schema.ByDay}})
	kit.OK(t, err)
	if _, err := days.Sweep(t.Context()); !errors.Is(err, schema.ErrLayout) {
		t.Errorf("plain table: %v, want ErrLayout", err)
	}
	lite := kit.SQLite(t)
	_, err = dedup.New(lite.DB, dedup.Config{Schema: schema.Config{Dialect: schema.SQLite, Inbox: schema.ByDay}})
	if err == nil || !strings.Contains(err.Error(), "SQLite has no partitions") {
		t.Errorf("SQLite: %v", err)
	}
}

// During a rollout, the previous version of a service, which does not set schema.ByDay,
// must work with the new tables.
func TestPreviousVersionWorksWithDays(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	b.sweep()
	b.past(40, 3)
	plain, err := dedup.New(b.DB, dedup.Config{Consumer: consumer})
	kit.OK(t, err)
	id := outbox.NewID()
	for range 2 {
		kit.OK(t, kit.Err(plain.Middleware(apply)(message.NewMessage(id, nil))))
	}
	b.expect(1, 4, 0)
	if n, err := plain.Sweep(t.Context()); n != 3 || err != nil {
		t.Errorf("%d rows were removed, %v", n, err)
	}
}

// An insert into the inbox must read only one partition.
func TestInsertReadsOnePartition(t *testing.T) {
	t.Parallel()
	b := newDays(t)
	today := b.past(0, 1000)
	b.sweep()
	id := outbox.NewID()
	b.handle(apply, id)
	plan := func(query string, args ...any) string {
		return strings.Join(kit.Lines(t, b, `EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) `+query, args...), "\n")
	}
	same := plan(`SELECT digest = 'x' FROM once_inbox WHERE message_id = '` + id + `' AND consumer = 'payments'`)
	if strings.Count(same, " on once_inbox_") != 1 || !strings.Contains(same, today) {
		t.Errorf("one message:\n%s", same)
	}
	if many := plan(dedup.DigestsQuery(b.inbox), consumer, "{"+id+"}"); strings.Count(many, "never executed") < 7 {
		t.Errorf("several messages:\n%s", many)
	}
	tx := kit.Begin(t, b)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ($1, 'payments', '')
		ON CONFLICT (message_id, consumer) DO NOTHING`, outbox.NewID())
	if locked := b.lockedBy(tx); !slices.Equal(locked, []string{"once_inbox", today}) {
		t.Errorf("a claim locks %v", locked)
	}
}

func (b *bench) lockedBy(tx *sql.Tx) (tables []string) {
	b.Helper()
	var list string
	kit.OK(b, tx.QueryRowContext(b.Context(), `
		SELECT string_agg(DISTINCT c.relname, ',' ORDER BY c.relname) FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
		WHERE l.pid = pg_backend_pid() AND c.relname LIKE 'once\_inbox%' AND c.relkind IN ('r', 'p')`).Scan(&list))
	return strings.Split(list, ",")
}

// The whole inbox is locked while days are dropped, so one sweep drops at most 32 days.
// The next sweep drops the other days.
func TestSweepDropsAtMost32DaysAtOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newDays(t)
	const days = 34
	for n := range days {
		b.past(40+n, 0)
	}
	before := len(b.tables())
	for _, want := range []int{days - 32, 0} {
		b.sweep()
		if left := len(b.tables()) - before + days - 7; left != want { // it creates 7 days
			t.Errorf("%d of %d expired days are left, want %d", left, days, want)
		}
	}
}

// A day is emptied as a whole if up to 20,000 of its rows must stay. If more must stay,
// its expired rows are deleted one by one, because other transactions wait while rows
// are moved.
func TestDayIsEmptiedIfFewRowsMustStay(t *testing.T) {
	kit.Long(t) // in make test, TestDayWithManyNeededRowsIsSweptByRow has one of the cases
	t.Parallel()
	for kept, emptied := range map[int]bool{20_000: true, 20_001: false} {
		b := newDays(t)
		const expired = 4000
		old := b.past(40, kept+expired)
		b.Exec(`UPDATE once_inbox SET processed_at = now()
			WHERE message_id IN (SELECT message_id FROM `+old+` ORDER BY message_id LIMIT $1)`, kept)
		removed := b.sweep()
		b.WantCount(kept, old)
		if want := map[bool]int64{true: 2000, false: expired}[emptied]; removed != want {
			t.Errorf("with %d rows that stay %d are deleted one by one, want %d", kept, removed, want)
		}
	}
}

// A sweep must write the keys of all old parked messages into their rows, however many
// there are.
func TestSweepWritesTheKeysOfManyParkedMessages(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	b := newBench(t, kit.Postgres(t), byPayload)
	const rows = 1000 // two full batches
	// The table does not contain the rows in the order of their ids.
	b.Exec(`INSERT INTO once_parked (id, consumer, topic, message_id, digest, envelope, state, due_at) OVERRIDING SYSTEM VALUE
		SELECT $1 + 1 - i, 'payments', 't', 'p' || i, '', $2, 'quarantined', now() FROM generate_series(1, $1) AS i`,
		rows, parkedrows.Encode(message.NewMessage("p", []byte("order-17"))))
	b.ageParked()
	kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("order-17")))))
	b.age(aYear)
	b.sweep()
	if n := b.Count(`once_parked WHERE dedup_key = 'key:order-17'`); n != rows {
		t.Errorf("the keys of %d messages are written, want %d", n, rows)
	}
	b.WantCount(1, `once_inbox WHERE message_id = 'key:order-17'`)
}

// Parked messages may be large, so one transaction must read only few of them.
// Otherwise it would need too much memory, and would hold locks for too long.
func TestSweepWritesTheKeysOfLargeMessagesInSmallTransactions(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), func(c *dedup.Config) {
		c.Consumer, c.Key = consumer, func(*message.Message) string { return "order-17" }
	})
	for i := range 3 {
		b.parkAs("quarantined", fmt.Sprint("p", i), strings.Repeat("x", 600<<10))
	}
	b.ageParked()
	kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("A", []byte("a")))))
	b.sweep()
	if n := b.Count(`(SELECT DISTINCT xmin::text FROM once_parked WHERE dedup_key = 'key:order-17') AS written`); n != 3 {
		t.Errorf("the keys are written in %d transactions, want one for each message", n)
	}
}
