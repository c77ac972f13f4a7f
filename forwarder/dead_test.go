package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

var (
	ann     = deadletter.Act{Actor: "ann", Why: "the queue is back"}
	anybody = deadletter.Filter{All: true}
)

func deadLetters(t *testing.T, db *sql.DB, config schema.Config) *deadletter.Letters {
	t.Helper()
	letters, err := deadletter.New(db, deadletter.Config{Schema: config})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var f [5]string
		if err := rows.Scan(&f[0], &f[1], &f[2], &f[3], &f[4]); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, strings.Join(f[:], " | "))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
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
	barrier, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = barrier.Rollback() }()
	if _, err := barrier.Exec(`SELECT pg_advisory_xact_lock(1)`); err != nil {
		t.Fatal(err)
	}

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
	if err := barrier.Rollback(); err != nil {
		t.Fatal(err)
	}
	put(t, db, schema.Config{}, "t", msg("good", ""))
	drained(t, db)
	if got := dead(t, db); got != 0 {
		t.Fatalf("dead is %d, want 0", got)
	}
}
