package archive_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate/archive"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// bench is a database with an inbox.
type bench struct {
	*testing.T

	db      *sql.DB
	dialect dialect.Dialect
	log     *archive.Log
}

func newBench(t *testing.T, db kit.Database, layout schema.Layout) *bench {
	t.Helper()
	config := schema.Config{Dialect: schema.Dialect(db.Dialect), Inbox: layout}
	kit.OK(t, schema.Up(t.Context(), db.DB, config))
	d := kit.Dialect(t, config)
	log, err := archive.New(db.DB, config)
	kit.OK(t, err)
	return &bench{t, db.DB, d, log}
}

func eachDatabase(t *testing.T, test func(b *bench)) {
	t.Helper()
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(newBench(t, db, "")) })
}

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// insert inserts the row of a message that was handled at a time.
func (b *bench) insert(id, consumer string, at time.Time, tenant any) {
	b.Helper()
	kit.Exec(b, b.db, b.dialect.SQL(`
		INSERT INTO {inbox} (message_id, consumer, processed_at, digest, tenant) VALUES ($1, $2, {from_millis $3}, '', $4)`),
		id, consumer, at.UnixMilli(), tenant)
}

// export returns the lines of an export.
func (b *bench) export(f archive.Filter) (lines []string, last archive.Cursor) {
	b.Helper()
	var out bytes.Buffer
	n, last, err := b.log.Export(b.Context(), f, &out)
	kit.OK(b, err)
	lines = slices.Collect(strings.Lines(out.String()))
	if n != len(lines) {
		b.Fatalf("Export returns %d, but wrote %d lines", n, len(lines))
	}
	return lines, last
}

func (b *bench) settled() time.Time {
	b.Helper()
	at, err := b.log.Settled(b.Context())
	kit.OK(b, err)
	return at
}

func TestExportWritesRowsInTheOrderOfTheirTimes(t *testing.T) {
	kit.Long(t)
	eachDatabase(t, func(b *bench) {
		b.insert("m2", "payments", noon, nil)
		b.insert("m1", "payments", noon.Add(time.Millisecond), "acme")
		b.insert("m2", "mails", noon, nil)
		b.insert("key:capture/<17>", "payments", noon.Add(-time.Second), nil)
		lines, last := b.export(archive.Filter{})
		want := []string{
			`{"version":1,"key":"capture/<17>","consumer":"payments","handled_at":"2026-05-01T11:59:59Z"}` + "\n",
			`{"version":1,"message_id":"m2","consumer":"mails","handled_at":"2026-05-01T12:00:00Z"}` + "\n",
			`{"version":1,"message_id":"m2","consumer":"payments","handled_at":"2026-05-01T12:00:00Z"}` + "\n",
			`{"version":1,"message_id":"m1","consumer":"payments","handled_at":"2026-05-01T12:00:00.001Z","tenant":"acme"}` + "\n",
		}
		if !slices.Equal(lines, want) {
			b.Errorf("got %s\nwant %s", lines, want)
		}
		if want := (archive.Cursor{HandledAt: noon.Add(time.Millisecond), ID: "m1", Consumer: "payments"}); last != want {
			b.Errorf("the last place is %v, want %v", last, want)
		}
		if lines, last := b.export(archive.Filter{After: last}); len(lines) != 0 || last.ID != "m1" {
			b.Errorf("after the last row: %s, %v", lines, last)
		}
		if lines, _ := b.export(archive.Filter{Until: noon}); len(lines) != 1 {
			b.Errorf("before noon: %s, want one row", lines)
		}
	})
}

// Each export continues after the last line of the previous export, even if several
// rows have the same time.
func TestExportContinuesAfterEachLine(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for n := range 12 {
			id := fmt.Sprintf("m%d", n)
			if n%4 == 0 {
				id = "key:" + id
			}
			b.insert(id, fmt.Sprintf("consumer %d", n%3), noon.Add(time.Duration(n/6)*time.Millisecond), nil)
		}
		if !b.dialect.SQLite() { // times that differ in less than a millisecond
			kit.Exec(b, b.db, `UPDATE once_inbox SET processed_at = processed_at + interval '1 microsecond'
				WHERE message_id IN ('m3', 'm9')`)
		}
		whole, _ := b.export(archive.Filter{})
		if len(whole) != 12 {
			b.Fatalf("%d rows, want 12", len(whole))
		}
		for limit := 1; limit <= 5; limit++ {
			var parts []string
			var after archive.Cursor
			for {
				lines, last := b.export(archive.Filter{After: after, Limit: limit})
				if len(lines) == 0 {
					break
				}
				parts = append(parts, lines...)
				of, err := archive.CursorOf([]byte(lines[len(lines)-1]))
				kit.OK(b, err)
				if of != last {
					b.Fatalf("CursorOf returns %v, Export %v", of, last)
				}
				after = of
			}
			if !slices.Equal(parts, whole) {
				b.Errorf("in parts of %d: %s\nwant %s", limit, parts, whole)
			}
		}
	})
}

func TestExportReadsAllPages(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		tx, err := b.db.BeginTx(b.Context(), nil) // all rows have the same time
		kit.OK(b, err)
		for n := range 2001 {
			kit.Exec(b, tx, b.dialect.SQL(`INSERT INTO {inbox} (message_id, consumer, digest, processed_at)
				VALUES ($1, 'payments', '', {from_millis $2})`), fmt.Sprintf("m%04d", n), noon.UnixMilli())
		}
		kit.OK(b, tx.Commit())
		lines, _ := b.export(archive.Filter{})
		slices.Sort(lines)
		if n := len(slices.Compact(lines)); n != 2001 {
			b.Errorf("%d different lines, want 2001", n)
		}
		if lines, _ := b.export(archive.Filter{Limit: 1500}); len(lines) != 1500 {
			b.Errorf("%d lines, want 1500", len(lines))
		}
	})
}

// The row of a handler has the time at which its transaction began. So an archive must
// not go beyond that time while the transaction runs, even if the transaction has not
// written anything yet.
func TestSettledWaitsForTransactionsThatBeganBefore(t *testing.T) {
	t.Parallel()
	for _, layout := range []schema.Layout{schema.Plain, schema.ByDay} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, kit.Postgres(t), layout)
			slow := kit.Begin(t, b.db)
			defer func() { _ = slow.Rollback() }()
			session := kit.One[string](t, slow, `SELECT pg_backend_pid()::text`)
			kit.Waits(t, "sessions "+session+":", func(ctx context.Context) error {
				_, err := b.log.Settled(ctx)
				return err
			})
			settled := make(chan time.Time)
			go func() {
				at, err := b.log.Settled(context.WithoutCancel(b.Context()))
				kit.Check(t, err)
				settled <- at
			}()
			kit.Exec(t, slow, `
				INSERT INTO once_inbox (message_id, consumer, digest, processed_at) VALUES ('slow', 'payments', '', now() - interval '2 minutes')`)
			kit.OK(t, slow.Commit())
			if lines, _ := b.export(archive.Filter{Until: <-settled}); len(lines) != 1 {
				t.Errorf("exported %s, want the row of the slow transaction", lines)
			}
		})
	}
}

// Settled leaves out the latest minute, because a server can be slow to register a
// transaction that begins.
func TestSettledIsAMinuteAgo(t *testing.T) {
	kit.Long(t)
	eachDatabase(t, func(b *bench) {
		before := time.Now()
		at := b.settled()
		if at.Before(before.Add(-time.Minute-5*time.Second)) || at.After(time.Now().Add(-time.Minute+5*time.Second)) {
			b.Errorf("settled at %v, now is %v", at, before)
		}
	})
}

// SQLite's rows have the time of their insert, and appear with the commit.
func TestSettledWaitsForTheWriterOfSQLite(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), "")
	tx, err := b.db.BeginTx(b.Context(), nil)
	kit.OK(t, err)
	kit.Exec(t, tx, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('slow', 'payments', '')`)
	settled := make(chan time.Time, 1)
	go func() {
		at, err := b.log.Settled(context.WithoutCancel(b.Context()))
		kit.Check(t, err)
		settled <- at
	}()
	select {
	case <-settled:
		t.Error("Settled returned while a transaction wrote")
	case <-time.After(200 * time.Millisecond): // a guess that can only hide the mistake
	}
	kit.OK(t, tx.Commit())
	<-settled
}

func TestBadInput(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		for _, c := range []struct {
			filter archive.Filter
			want   string
		}{
			{archive.Filter{Limit: -1}, "Limit is -1: must be at least 1, or 0 for no limit"},
			{archive.Filter{After: archive.Cursor{ID: "m1", Consumer: "payments"}}, "After is incomplete: use a Cursor that"},
		} {
			var out bytes.Buffer
			n, _, err := b.log.Export(b.Context(), c.filter, &out)
			if err == nil || !strings.Contains(err.Error(), c.want) || n != 0 || out.Len() != 0 {
				b.Errorf("%+v: %v, %d rows, want %q", c.filter, err, n, c.want)
			}
		}
	})
	for text, want := range map[string]string{
		`{"version":1`: "unexpected end of JSON input",
		`{"version":2,"message_id":"m1","consumer":"c","handled_at":"2026-05-01T12:00:00Z"}`: "version is 2, this code reads version 1",
		`{"version":1,"consumer":"c","handled_at":"2026-05-01T12:00:00Z"}`:                   "neither message_id nor key",
		`{"id":7,"version":1}`: "it has no handled_at",
	} {
		if _, err := archive.CursorOf([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := archive.New(nil, schema.Config{Prefix: "a b"}); err == nil ||
		!strings.Contains(err.Error(), "db is nil") || !strings.Contains(err.Error(), "Prefix") {
		t.Errorf("New: %v", err)
	}
}

var errFull = errors.New("no space left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestExportReportsAnErrorOfTheWriter(t *testing.T) {
	eachDatabase(t, func(b *bench) {
		b.insert("m1", "payments", noon, nil)
		n, last, err := b.log.Export(b.Context(), archive.Filter{}, full{})
		if !errors.Is(err, errFull) || n != 0 || last != (archive.Cursor{}) {
			b.Errorf("%d rows, place %v, error %v", n, last, err)
		}
	})
}

// The query of an export finds its rows through the index on the time, so an export of a
// large inbox does not sort the rows.
func TestExportReadsTheIndex(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), "")
	_, err := b.db.ExecContext(b.Context(), `
		INSERT INTO once_inbox (message_id, consumer, digest, processed_at)
		SELECT n::text, 'payments', '', timestamptz '2026-05-01 12:00Z' + n * interval '1 second' FROM generate_series(1, 20000) AS n;
		ANALYZE once_inbox`)
	kit.OK(t, err)
	query, args := b.log.Query(archive.Filter{
		After: archive.Cursor{HandledAt: noon.Add(10_000 * time.Second), ID: "10000", Consumer: "payments"}, Until: time.Now(),
	}, 1000)
	var plan string
	kit.OK(t, b.dialect.Read(b.Context(), b.db, func(tx *sql.Tx) error {
		return dialect.EachRow(b.Context(), tx, func(scan func(dest ...any) error) error {
			var line string
			err := scan(&line)
			plan += line + "\n"
			return err
		}, `EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) `+query, args...)
	}))
	if !strings.Contains(plan, "once_inbox_processed") || strings.Contains(plan, "Seq Scan") {
		t.Errorf("the plan is\n%s", plan)
	}
}
