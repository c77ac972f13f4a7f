package forwarder_test

import (
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

var (
	ann     = operate.Act{Actor: "ann", Why: "the queue is back"}
	anybody = operate.Filter{All: true}
)

func deadLetters(t *testing.T, db *sql.DB, config schema.Config) *dead.Letters {
	t.Helper()
	letters, err := dead.New(db, operate.Config{Schema: config})
	kit.OK(t, err)
	return letters
}

// insertDead inserts dead letters without a forwarder. The ids of their rows are 1, 2,
// and so on. They all have the same topic, error and reason.
func insertDead(t *testing.T, db *sql.DB, msgs ...*message.Message) {
	t.Helper()
	for i, m := range msgs {
		var key any
		if k := m.Metadata[outbox.OrderingKey]; k != "" {
			key = k
		}
		exec(t, db, `INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at,
			attempts, last_error, reason, unknown)
			VALUES ($1, $2, 't', $3, $4, $5, `+now(t, db)+`, 20, 'no queue', 'exhausted', 1 = 0)`,
			1000+i, m.UUID, key, []byte(m.Payload), encoded(t, m.Metadata))
	}
}

// age moves the times in a column of a table into the past.
func age(t *testing.T, db *sql.DB, table, column string, by time.Duration, where string) {
	t.Helper()
	earlier := fmt.Sprintf(`%s - %d`, column, by.Milliseconds())
	if !isSQLite(t, db) {
		earlier = fmt.Sprintf(`%s - interval '1 millisecond' * %d`, column, by.Milliseconds())
	}
	exec(t, db, `UPDATE `+table+` SET `+column+` = `+earlier+` WHERE `+where)
}

func audits(t *testing.T, db *sql.DB) (lines []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT actor, action, subject, message_id, why FROM once_audit ORDER BY id`)
	kit.OK(t, err)
	defer rows.Close()
	for rows.Next() {
		var f [5]string
		kit.OK(t, rows.Scan(&f[0], &f[1], &f[2], &f[3], &f[4]))
		lines = append(lines, strings.Join(f[:], " | "))
	}
	kit.OK(t, rows.Err())
	return lines
}

// The forwarder inserts a dead letter, and then deletes the row of the message. If
// somebody else deletes the row in between, no dead letter must remain. The previous
// owner of the slot does this when a confirm arrives late.
func TestAMessageIsRemovedWhileItBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	exec(t, db, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END'`)
	exec(t, db, `CREATE TRIGGER wait BEFORE INSERT ON once_outbox_dead FOR EACH ROW EXECUTE FUNCTION wait()`)
	barrier := kit.Begin(t, db)
	defer func() { _ = barrier.Rollback() }()
	kit.OK(t, kit.Err(barrier.Exec(`SELECT pg_advisory_xact_lock(1)`)))

	b := newBroker().answering(func(d delivery) error {
		if d.id == "bad" {
			return hopeless{errors.New("too large")}
		}
		return nil
	})
	start(t, db, b, quick(schema.Config{}))
	put(t, db, schema.Config{}, "t", msg("bad", ""))
	eventually(t, "it is becoming a dead letter", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()`) == 1
	})
	exec(t, db, `DELETE FROM once_outbox WHERE message_id = 'bad'`)
	kit.OK(t, barrier.Rollback())
	put(t, db, schema.Config{}, "t", msg("good", ""))
	drained(t, db)
	if got := countDead(t, db); got != 0 {
		t.Fatalf("dead is %d, want 0", got)
	}
}

// Rows of the sent log and of the dead letters have the label columns, by which they can
// be found. If the metadata of a row has a form that package outbox never writes, the
// forwarder continues with other rows.
func TestSentAndDeadRowsHaveLabels(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		labelled := msg("labelled", "")
		outbox.SetTenant(labelled, `it's <"acme">`)
		outbox.SetAggregate(labelled, "order", strings.Repeat("ü", 300), 1)
		outbox.SetEventType(labelled, "placed")
		labelled.Metadata["once_causation_id"] = "cause"
		dead := labelled.Copy()
		dead.UUID = "dead"
		put(t, db, config, "t", labelled, msg("bare", ""))
		put(t, db, config, "bad", dead)
		escaped := msg("escaped", "")
		outbox.SetTenant(escaped, "acme")
		escaped.Metadata["path"] = `C:\UDF\u0000.txt`
		put(t, db, config, "t", escaped)
		odd := []string{
			`{"once_tenant_id":"acme","path":"\\\u0000"}`,
			`{"once_tenant_id":"a\u0000b"}`, `{"once_tenant_id":"\ud83d"}`, `{"once_tenant_id":"\u00e9"}`, `["once_tenant_id"]`, `null`, `"x"`,
			`{"once_tenant_id":{"a":1}}`,
		}
		for _, metadata := range odd {
			exec(t, db, `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
				VALUES ($1, 't', 0, '', $2)`, metadata, metadata)
		}
		start(t, db, refusingBad(), keeping(config))
		drained(t, db)

		const labels = ` WHERE message_id = $1
			AND tenant || '|' || aggregate_type || '|' || aggregate_id || '|' || event_type || '|' || causation_id = $2`
		want := `it's <"acme">|order|` + strings.Repeat("ü", 255) + `|placed|cause`
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_sent`+labels, "labelled", want)
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_sent`+labels, "bare", "||||")
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_sent`+labels, "escaped", "acme||||")
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_dead`+labels, "dead", want)
		kit.WantNumber(t, db, len(odd)+4, `SELECT (SELECT COUNT(*) FROM once_outbox_sent) + (SELECT COUNT(*) FROM once_outbox_dead)`)
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_sent WHERE tenant = 'é'`)
	})
}

// An id that package outbox never writes can be too long for the indexes of the sent log and of the dead
// letters. These then contain its beginning.
func TestIDThatNoIndexCanStore(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		random := make([]byte, 4000) // PostgreSQL cannot compress it
		_, _ = rand.Read(random)
		id := hex.EncodeToString(random)
		for _, topic := range []string{"t", "bad"} {
			exec(t, db, `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata) VALUES ($1, $2, 0, '', '{}')`, id, topic)
		}
		put(t, db, config, "t", msg("good", ""))
		start(t, db, refusingBad(), keeping(config))
		drained(t, db)
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_sent WHERE substr($1, 1, 500) = substr(message_id, 1, 500)`, id)
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_dead WHERE substr($1, 1, 500) = substr(message_id, 1, 500)`, id)
	})
}

// refusingBad returns a broker that can never accept messages of the topic "bad".
func refusingBad() *broker {
	return newBroker().answering(func(d delivery) error {
		if d.topic == "bad" {
			return hopeless{errors.New("no")}
		}
		return nil
	})
}

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
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_sent WHERE message_id = 'new'`)
		kit.WantNumber(t, db, 1, `SELECT COUNT(*) FROM once_outbox_sent WHERE position = 2501`)

		age(t, db, "once_outbox_sent", "sent_at", 2*time.Minute, "message_id = 'm'")
		eventually(t, "it goes on", func() bool { return sent(t, db) == 1 })
	})
}

// If the sent log has one partition for each day, the forwarder drops old days, and
// creates coming days.
func TestTheSentLogByDayForgetsDays(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{Sent: schema.ByDay}))
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

// The query in the docs that looks for orders without an event must find them.
func TestQueryOfTheDocs(t *testing.T) {
	t.Parallel()
	text := kit.ReadFile(t, "../docs/operating-the-forwarder.md")
	blocks := sqlBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 1 {
		t.Fatalf("%d blocks, want 1: %q", len(blocks), blocks)
	}

	db := postgres(t)
	exec(t, db, `CREATE TABLE orders (id text, placed_at timestamptz NOT NULL DEFAULT now())`)
	exec(t, db, `INSERT INTO orders (id) VALUES ('sent'), ('pending'), ('dead'), ('missing')`)
	put(t, db, schema.Config{}, "orders.placed", msg("sent-placed", ""))
	f := start(t, db, newBroker(), keeping(schema.Config{}))
	drained(t, db)
	kit.OK(t, f.Close())
	put(t, db, schema.Config{}, "orders.placed", msg("pending-placed", ""))
	insertDead(t, db, msg("dead-placed", ""))

	var (
		n     int
		found string
	)
	kit.OK(t, db.QueryRowContext(t.Context(), `SELECT COUNT(*), MIN(id) FROM (`+blocks[0][1]+`) AS found`).Scan(&n, &found))
	if n != 1 || found != "missing" {
		t.Errorf("%d orders have no event, the first is %q, want 1 and %q", n, found, "missing")
	}
}
