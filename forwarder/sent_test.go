package forwarder_test

import (
	"database/sql"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/schema"
)

func keeping(config schema.Config) forwarder.Config {
	cfg := quick(config)
	cfg.KeepSent = time.Minute
	return cfg
}

func sent(t *testing.T, db *sql.DB) int {
	t.Helper()
	return count(t, db, `SELECT COUNT(*) FROM once_outbox_sent`)
}

func TestNothingIsKeptByDefault(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		put(t, db, config, "t", msg("a", ""))
		start(t, db, newBroker(), quick(config))
		drained(t, db)
		if got := sent(t, db); got != 0 {
			t.Fatalf("sent is %d, want 0", got)
		}
	})
}

func TestKeepSentIsValidated(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	for _, d := range []time.Duration{-time.Hour, time.Second} {
		if _, err := forwarder.New(db, newBroker(), forwarder.Config{KeepSent: d}); err == nil || !strings.Contains(err.Error(), "KeepSent") {
			t.Fatalf(`New: got %v, want an error with "KeepSent"`, err)
		}
	}
}

func TestTheSentLogForgets(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		const old = 2500
		series := `generate_series(1, 2501) AS n`
		if config.Dialect == schema.SQLite {
			series = `(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 2501) SELECT n FROM s) AS s`
		}
		exec(t, db, `INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at)
			SELECT n, 'm', 't', '', '{}', `+now(t, db)+` FROM `+series+` ORDER BY n`)
		age(t, db, "once_outbox_sent", "sent_at", 2*time.Minute, fmt.Sprint("position <= ", old))
		b := newBroker()
		start(t, db, b, keeping(config))
		put(t, db, config, "t", msg("new", ""))
		eventually(t, "the old ones are gone", func() bool { return sent(t, db) == 2 && pending(t, db) == 0 })
		if got := count(t, db, `SELECT COUNT(*) FROM once_outbox_sent WHERE message_id = 'new'`); got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}
		if got := count(t, db, `SELECT COUNT(*) FROM once_outbox_sent WHERE position = 2501`); got != 1 {
			t.Fatalf("count is %d, want 1", got)
		}

		age(t, db, "once_outbox_sent", "sent_at", 2*time.Minute, "message_id = 'm'")
		eventually(t, "it goes on", func() bool { return sent(t, db) == 1 })
	})
}

// If the sent log has one partition for each day, the forwarder drops old days, and
// creates coming days.
func TestTheSentLogByDayForgetsDays(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	if err := schema.Up(t.Context(), db, schema.Config{Sent: schema.ByDay}); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `DROP TABLE once_outbox_sent_first`)
	exec(t, db, `CREATE TABLE once_sent_20240101 PARTITION OF once_outbox_sent FOR VALUES FROM ('2024-01-01Z') TO ('2024-01-02Z')`)
	start(t, db, newBroker(), keeping(schema.Config{}))
	put(t, db, schema.Config{}, "t", msg("new", ""))
	days := func() int {
		return count(t, db, `SELECT COUNT(*) FROM pg_inherits WHERE inhparent = 'once_outbox_sent'::regclass`)
	}
	old := func() int { return count(t, db, `SELECT COUNT(*) FROM pg_class WHERE relname = 'once_sent_20240101'`) }
	eventually(t, "the old day is dropped, and coming ones are there", func() bool { return old() == 0 && days() == 8 && sent(t, db) == 1 })
}

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// The queries in the docs that look for lost messages must find them.
func TestQueriesOfTheDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/operating-the-forwarder.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := sqlBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks, want 2: %q", len(blocks), blocks)
	}

	db := postgres(t)
	exec(t, db, `CREATE TABLE orders (id text, placed_at timestamptz NOT NULL DEFAULT now())`)
	exec(t, db, `INSERT INTO orders (id) VALUES ('sent'), ('pending'), ('dead'), ('missing')`)
	put(t, db, schema.Config{}, "orders.placed", msg("sent-placed", ""), msg("handled-placed", ""))
	f := start(t, db, newBroker(), keeping(schema.Config{}))
	drained(t, db)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, db, schema.Config{}, "orders.placed", msg("pending-placed", ""))
	insertDead(t, db, msg("dead-placed", ""))
	age(t, db, "once_outbox_sent", "sent_at", time.Hour, "1 = 1")
	exec(t, db, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('handled-placed', 'payments', '')`)

	for i, want := range []string{"missing", "sent-placed"} {
		query := `SELECT COUNT(*), MIN(` + []string{"id", "message_id"}[i] + `) FROM (` + blocks[i][1] + `) AS found`
		var (
			n     int
			found string
		)
		if err := db.QueryRowContext(t.Context(), query).Scan(&n, &found); err != nil {
			t.Fatal(err)
		}
		if n != 1 {
			t.Fatalf("n is %d, want 1", n)
		}
		if found != want {
			t.Fatalf("found is %q, want %q", found, want)
		}
	}
}
