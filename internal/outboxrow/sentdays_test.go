package outboxrow_test

import (
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

const oneDay = 24 * time.Hour

// bench is a database whose sent log is partitioned by day.
type bench struct {
	*testing.T

	db *sql.DB
	d  dialect.Dialect
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := plain(t)
	kit.WithinADay(t)
	b.up()
	return b
}

func plain(t *testing.T) *bench {
	t.Helper()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	d := kit.Dialect(t, schema.Config{})
	return &bench{t, db.DB, d}
}

func (b *bench) up() {
	b.Helper()
	kit.OK(b, schema.Up(b.Context(), b.db, schema.Config{Sent: schema.ByDay}))
}

func (b *bench) exec(query string, args ...any) {
	b.Helper()
	if _, err := b.db.ExecContext(b.Context(), query, args...); err != nil {
		b.Fatalf("%s: %v", query, err)
	}
}

// send inserts the row of a message. ago is the time that has passed
// since the message was sent.
func (b *bench) send(id string, ago time.Duration) {
	b.Helper()
	b.exec(`INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
		VALUES (1, $1, 't', '', '{}', now(), now() - $2 * interval '1 millisecond')`, id, ago.Milliseconds())
}

func (b *bench) sweep(keep time.Duration) outboxrow.SentDays {
	b.Helper()
	r, err := outboxrow.SweepSentDays(b.Context(), b.db, b.d, keep)
	kit.OK(b, err)
	return r
}

// rows returns the messages with their partitions.
func (b *bench) rows() (all []string) {
	b.Helper()
	return b.list(`SELECT message_id || ' in ' || tableoid::regclass FROM once_outbox_sent ORDER BY id`)
}

func (b *bench) partitions() []string {
	b.Helper()
	return b.list(`SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'once_outbox_sent'::regclass ORDER BY 1`)
}

func (b *bench) list(query string) (all []string) {
	b.Helper()
	return kit.Lines(b, b.db, query)
}

func (b *bench) expect(what string, got, want []string) {
	b.Helper()
	if !slices.Equal(got, want) {
		b.Errorf("%s: %v, want %v", what, got, want)
	}
}

// day returns the name of the partition of the day n days from today.
func day(n int) string {
	return "once_sent_" + time.Now().UTC().AddDate(0, 0, n).Format("20060102")
}

func TestSweepDoesNothingWithAPlainLog(t *testing.T) {
	t.Parallel()
	b := plain(t)
	b.send("old", 40*oneDay)
	if r := b.sweep(oneDay); r != (outboxrow.SentDays{}) {
		t.Errorf("plain: %+v", r)
	}
	lite := kit.SQLite(t)
	d := kit.Dialect(t, schema.Config{Dialect: schema.SQLite})
	if r, err := outboxrow.SweepSentDays(t.Context(), lite.DB, d, oneDay); err != nil || r.ByDay {
		t.Errorf("SQLite: %+v, %v", r, err)
	}
}

// The conversion to partitions keeps the rows and their IDs. Later rows get higher IDs.
func TestPlainLogBecomesTheFirstPartition(t *testing.T) {
	t.Parallel()
	b := plain(t)
	b.send("a", time.Hour)
	b.send("b", 0)
	b.exec(`DELETE FROM once_outbox_sent WHERE message_id = 'a'`)
	b.up()
	b.up() // a second call changes nothing
	b.send("c", 0)
	b.expect("rows", b.rows(), []string{"b in once_outbox_sent_first", "c in once_outbox_sent_first"})
	b.expect("IDs", b.list(`SELECT id::text FROM once_outbox_sent ORDER BY id`), []string{"2", "3"})
	b.expect("indexes", b.list(`SELECT indexname FROM pg_indexes WHERE tablename = 'once_outbox_sent' ORDER BY 1`),
		[]string{"once_outbox_sent_pkey", "once_sent_aggregate", "once_sent_causation", "once_sent_message"})
	b.expect("indexes of its first partition",
		b.list(`SELECT indexname FROM pg_indexes WHERE tablename = 'once_outbox_sent_first' ORDER BY 1`),
		[]string{"once_outbox_sent_first_pkey", "once_sent_first_aggregate", "once_sent_first_causation", "once_sent_first_message"})
}

func TestSweepCreatesTheComingDays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if r := b.sweep(oneDay); r != (outboxrow.SentDays{ByDay: true, Owner: true, Created: 7}) {
		t.Errorf("first: %+v", r)
	}
	if r := b.sweep(oneDay); r != (outboxrow.SentDays{ByDay: true, Owner: true}) {
		t.Errorf("second: %+v", r)
	}
	b.send("today", 0)
	b.send("tomorrow", -oneDay)
	b.send("far", -30*oneDay)
	b.expect("rows", b.rows(), []string{"today in once_outbox_sent_first", "tomorrow in " + day(1), "far in once_outbox_sent_default"})
	b.exec(`DROP TABLE ` + day(3)) // as if the sweep had not run for some days
	if r := b.sweep(oneDay); r.Created != 1 || !slices.Contains(b.partitions(), day(3)) {
		t.Errorf("third: %+v, %v", r, b.partitions())
	}
}

// The partition of a day is dropped when the retention time of its rows has passed
// since the end of the day.
func TestSweepDropsExpiredDays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// Simulate a log that has been partitioned for some days.
	b.exec(`DROP TABLE once_outbox_sent_first`)
	for n := -4; n <= 0; n++ {
		at := time.Now().UTC().AddDate(0, 0, n)
		b.exec(fmt.Sprintf(`CREATE TABLE %s PARTITION OF once_outbox_sent FOR VALUES FROM ('%sZ') TO ('%sZ')`,
			day(n), at.Format(time.DateOnly), at.AddDate(0, 0, 1).Format(time.DateOnly)))
		b.send(fmt.Sprint(-n), time.Duration(-n)*oneDay)
	}
	b.send("forgotten", 10*oneDay) // in the default partition
	b.send("kept", -100*oneDay)
	if r := b.sweep(2 * oneDay); r.Dropped != 2 || r.Forgotten != 1 {
		t.Errorf("%+v", r)
	}
	b.expect("rows", b.rows(), []string{"2 in " + day(-2), "1 in " + day(-1), "0 in " + day(0), "kept in once_outbox_sent_default"})
}

// The first partition contains the rows from before the conversion. It is dropped like
// the partition of a day.
func TestSweepDropsTheFirstPartition(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.sweep(oneDay)
	b.exec(`ALTER TABLE once_outbox_sent DETACH PARTITION once_outbox_sent_first;
		ALTER TABLE once_outbox_sent ATTACH PARTITION once_outbox_sent_first FOR VALUES FROM (MINVALUE) TO ('2020-01-01 00:00Z')`)
	if r := b.sweep(oneDay); r.Dropped != 1 {
		t.Errorf("%+v", r)
	}
	if slices.Contains(b.partitions(), "once_outbox_sent_first") {
		t.Errorf("partitions %v", b.partitions())
	}
}

// While a transaction reads the log, for example for an export, Sweep drops no
// partition, and the reader does not fail.
func TestSweepLeavesADayThatIsInUse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.sweep(oneDay)
	b.exec(`ALTER TABLE once_outbox_sent DETACH PARTITION once_outbox_sent_first;
		ALTER TABLE once_outbox_sent ATTACH PARTITION once_outbox_sent_first FOR VALUES FROM (MINVALUE) TO ('2020-01-01 00:00Z')`)
	reader := kit.Begin(t, b.db)
	defer func() { _ = reader.Rollback() }()
	kit.One[int](t, reader, `SELECT COUNT(*) FROM once_outbox_sent`)
	if r := b.sweep(oneDay); r.Dropped != 0 {
		t.Errorf("while the log is read: %+v", r)
	}
	kit.OK(t, reader.Rollback())
	if r := b.sweep(oneDay); r.Dropped != 1 {
		t.Errorf("afterwards: %+v", r)
	}
}

func TestManyProcessesSweep(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			kit.Check(t, kit.Err(outboxrow.SweepSentDays(t.Context(), b.db, b.d, oneDay)))
		})
	}
	all.Wait()
	b.sweep(oneDay)
	if n := len(b.partitions()); n != 9 {
		t.Errorf("%d partitions, want the first, 7 days and the default: %v", n, b.partitions())
	}
}

// Sweep reads the days of the partitions correctly in every time zone and date style of
// the session.
func TestSweepReadsBoundsInAnyTimeZone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.db.SetMaxOpenConns(1)
	b.exec(`SET TimeZone = 'Pacific/Auckland'; SET DateStyle = 'SQL, DMY'`)
	if r := b.sweep(oneDay); r.Created != 7 {
		t.Errorf("first: %+v", r)
	}
	if r := b.sweep(oneDay); r.Created != 0 || r.Dropped != 0 {
		t.Errorf("second: %+v", r)
	}
	if want := day(1); !slices.Contains(b.partitions(), want) {
		t.Errorf("%v has no %s", b.partitions(), want)
	}
}
