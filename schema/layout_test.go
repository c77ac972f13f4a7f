package schema_test

import (
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/schema"
)

var byDay = schema.Config{Inbox: schema.ByDay}

func TestUpConvertsPlainInboxToByDay(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	exec := func(query string) error {
		_, err := db.ExecContext(t.Context(), query)
		return err
	}
	count := func(what string) (n int) {
		t.Helper()
		kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM `+what).Scan(&n))
		return n
	}
	kit.OK(t, exec(`INSERT INTO once_inbox (message_id, consumer, digest) SELECT n::text, 'payments', '' FROM generate_series(1, 1000) AS n`))
	file := func() (n int) { // returns the number of the file that contains the rows; it stays the same if the rows were not copied
		t.Helper()
		kit.OK(t, db.QueryRowContext(t.Context(), `
			SELECT max(pg_relation_filenode(oid)::bigint) FROM pg_class WHERE relname IN ('once_inbox', 'once_inbox_default')`).Scan(&n))
		return n
	}
	before := file()

	const plain = `schema: the table has another layout: "once_inbox" has no partitions by day: ` +
		`run schema.Up, or apply the end of schema.SQL`
	if err := schema.Check(t.Context(), db.DB, byDay); !errors.Is(err, schema.ErrLayout) || err.Error() != plain {
		t.Errorf("Check of a plain inbox for ByDay: %v, want %s", err, plain)
	}
	for range 2 {
		kit.OK(t, schema.Up(t.Context(), db.DB, byDay))
		kit.OK(t, schema.Check(t.Context(), db.DB, byDay))
	}
	if n := count(`once_inbox`); n != 1000 || file() != before {
		t.Errorf("%d rows of 1000, copied: %v", n, file() != before)
	}
	if err := exec(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('17', 'payments', '')`); err == nil {
		t.Error("the inbox accepts an id twice")
	}

	for begin, err := range map[string]error{
		"schema: ":     schema.Check(t.Context(), db.DB, schema.Config{}),
		"schema: up: ": schema.Up(t.Context(), db.DB, schema.Config{}),
	} {
		want := begin + `the table has another layout: "once_inbox" has partitions by day: set Config.Inbox to schema.ByDay`
		if !errors.Is(err, schema.ErrLayout) || err.Error() != want {
			t.Errorf("an inbox by day for Plain: %v, want %s", err, want)
		}
	}

	// This is the conversion back to Plain that docs/decisions/0019-days-are-ranges-of-ids.md describes.
	kit.OK(t, exec(`
		BEGIN;
		ALTER TABLE once_inbox RENAME TO once_inbox_days;
		CREATE TABLE once_inbox (LIKE once_inbox_days INCLUDING DEFAULTS);
		INSERT INTO once_inbox SELECT * FROM once_inbox_days;
		DROP TABLE once_inbox_days;
		ALTER TABLE once_inbox ADD PRIMARY KEY (message_id, consumer);
		CREATE INDEX once_inbox_processed ON once_inbox (processed_at);
		COMMIT`))
	if err := schema.Check(t.Context(), db.DB, schema.Config{}); err != nil || count(`once_inbox`) != 1000 {
		t.Errorf("%v, with %d rows", err, count(`once_inbox`))
	}
	if err := schema.Up(t.Context(), db.DB, byDay); err != nil {
		t.Errorf("second conversion: %v", err)
	}
}

func TestSQLByDayEqualsUp(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	config := schema.Config{Prefix: "mine_", Inbox: schema.ByDay}
	text, err := schema.SQL(config)
	kit.OK(t, err)
	kit.Exec(t, db, text)
	kit.OK(t, schema.Check(t.Context(), db.DB, config))
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatalf("Up after SQL: %v", err)
	}
}

// Up fails if a long transaction uses the inbox. If Up waited for a lock on the table,
// all later transactions that use the table would wait behind Up.
func TestInboxIsNotConvertedWhileInUse(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	tx, err := db.BeginTx(t.Context(), nil)
	kit.OK(t, err)
	kit.Exec(t, tx, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m1', 'payments', '')`)
	if err := schema.Up(t.Context(), db.DB, byDay); err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("Up returned %v", err)
	}
	kit.OK(t, tx.Commit())
	kit.OK(t, schema.Up(t.Context(), db.DB, byDay))
}

func TestTrap30ManyProcessesConvertOneInbox(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	config := schema.Config{Schema: "many", Inbox: schema.ByDay}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			kit.Check(t, schema.Up(t.Context(), db.DB, config))
		})
	}
	all.Wait()
	kit.OK(t, schema.Check(t.Context(), db.DB, config))
}

var sentByDay = schema.Config{Sent: schema.ByDay}

// backToPlain finds the SQL in the docs that makes the sent log a single table again.
var backToPlain = regexp.MustCompile("(?s)```sql\n(BEGIN;\nALTER TABLE once_outbox_sent .*?)```")

func TestUpConvertsPlainSentLogToByDay(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	exec := func(query string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	send := func() (id int) {
		t.Helper()
		kit.OK(t, db.QueryRowContext(t.Context(), `INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
			VALUES (1, 'm', 't', '', '{}', now()) RETURNING id`).Scan(&id))
		return id
	}
	check := func(config schema.Config, want string) {
		t.Helper()
		err := schema.Check(t.Context(), db.DB, config)
		if want == "" && err != nil || want != "" && (!errors.Is(err, schema.ErrLayout) || err.Error() != "schema: "+want) {
			t.Errorf("Check of %+v: %v, want %q", config, err, want)
		}
	}
	first := send()
	check(schema.Config{}, "")
	check(schema.Config{Sent: schema.Plain}, "")
	check(sentByDay, `the table has another layout: "once_outbox_sent" has no partitions by day: `+
		`run schema.Up, or apply the end of schema.SQL`)
	for range 2 {
		kit.OK(t, schema.Up(t.Context(), db.DB, sentByDay))
	}
	check(schema.Config{}, "")
	check(sentByDay, "")
	const partitioned = `the table has another layout: "once_outbox_sent" has partitions by day: set Config.Sent to schema.ByDay`
	check(schema.Config{Sent: schema.Plain}, partitioned)
	if err := schema.Up(t.Context(), db.DB, schema.Config{}); err != nil {
		t.Errorf("Up of the zero value: %v", err)
	}
	err := schema.Up(t.Context(), db.DB, schema.Config{Sent: schema.Plain})
	if !errors.Is(err, schema.ErrLayout) || err.Error() != "schema: up: "+partitioned {
		t.Errorf("Up to Plain: %v", err)
	}
	if second := send(); second != first+1 {
		t.Errorf("ID %d follows %d", second, first)
	}

	docs := kit.ReadFile(t, "../docs/decisions/0033-the-sent-log-by-day.md")
	back := backToPlain.FindSubmatch(docs)
	if back == nil {
		t.Fatal("the docs do not say how to go back")
	}
	exec(string(back[1]))
	check(schema.Config{Sent: schema.Plain}, "")
	if third := send(); third != first+2 {
		t.Errorf("ID %d, want %d", third, first+2)
	}
	if err := schema.Up(t.Context(), db.DB, sentByDay); err != nil {
		t.Errorf("second conversion: %v", err)
	}
}

func TestSQLWithBothLayoutsEqualsUp(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	config := schema.Config{Prefix: "mine_", Inbox: schema.ByDay, Sent: schema.ByDay}
	text, err := schema.SQL(config)
	kit.OK(t, err)
	kit.Exec(t, db, text)
	kit.OK(t, schema.Check(t.Context(), db.DB, config))
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatalf("Up after SQL: %v", err)
	}
}
