package forwarder_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// Trap 23. While messages are in flight, the forwarder must hold no lock in the
// database.
func TestTrap23_NothingIsHeldWhilePublishing(t *testing.T) {
	t.Parallel()
	database := testkit.Postgres(t)
	if err := schema.Up(t.Context(), database.DB, schema.Config{}); err != nil {
		t.Fatal(err)
	}
	db, mine := database.DB, secondPool(t, database)
	release := make(chan struct{})
	b := newBroker().answering(func(delivery) error { <-release; return nil })
	start(t, db, &pipelined{broker: b}, quick(schema.Config{}))
	var msgs []*message.Message
	for i := range 20 {
		msgs = append(msgs, msg(fmt.Sprint(i), ""))
	}
	put(t, db, schema.Config{}, "t", msgs...)
	eventually(t, "all are in flight", func() bool { return b.tries("0") == 1 && b.tries("19") == 1 })
	giveTime(time.Second)
	eventually(t, "no transaction is open for as long", func() bool {
		return count(t, mine, `SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
			AND xact_start < now() - interval '500 milliseconds'`) == 0
	})
	if got := count(t, mine, `SELECT COUNT(*) FROM (SELECT FROM once_outbox FOR UPDATE NOWAIT) AS free`); got != 20 {
		t.Fatalf("count is %d, want 20", got)
	}
	for _, table := range []string{"once_outbox", "once_slots", "once_blocked_keys"} { // locks on several tables could deadlock with a read
		tx, end, err := dialect.Begin(t.Context(), mine, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.ExecContext(t.Context(), `SET LOCAL lock_timeout = '30s'; LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`)
		end()
		if err != nil {
			t.Fatalf("%v: a read holds no lock for long", err)
		}
	}
	close(release)
	drained(t, db)
	if got := b.tries("0"); got != 1 {
		t.Fatalf(`b.tries("0") is %d, want 1`, got)
	}
}

// Trap 24. Reads must stay fast while an open snapshot keeps deleted rows from being
// vacuumed: a read must not scan these rows again.
func TestTrap24_AHeldSnapshotDoesNotSlowDownReads(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	db := alone(t)
	snapshot, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	if _, err := snapshot.ExecContext(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`); err != nil {
		t.Fatal(err)
	}

	cfg := quick(schema.Config{})
	cfg.PollMax = 5 * time.Millisecond
	b := newBroker()
	start(t, db, &pipelined{broker: b}, cfg)
	exec(t, db, `INSERT INTO once_outbox (message_id, topic, slot, payload, metadata)
		SELECT i, 't', i % 64, 'payload', '{}' FROM generate_series(1, $1::int) AS i`, rows)
	drained(t, db)
	exec(t, db, `VACUUM once_outbox`)
	if got := count(t, db, `SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'once_outbox'`); got < rows {
		t.Fatalf("count is %d, want at least %d: the snapshot holds nothing back", got, rows)
	}

	polls := func() int {
		return count(t, db, `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`)
	}
	blocks := func() int {
		return count(t, db, `SELECT heap_blks_hit + heap_blks_read FROM pg_statio_user_tables WHERE relname = 'once_outbox'`)
	}
	// The server updates its statistics late, so that the first results may still
	// contain the cost of sending the messages.
	eventually(t, "a poll that goes through few blocks of the table", func() bool {
		pollsBefore, blocksBefore := polls(), blocks()
		eventually(t, "a hundred polls", func() bool { giveTime(200 * time.Millisecond); return polls() > pollsBefore+100 })
		return (blocks()-blocksBefore)/(polls()-pollsBefore) < 20
	})
}
