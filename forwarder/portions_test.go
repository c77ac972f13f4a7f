package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// If deleting all confirmed messages takes longer than the timeout of one transaction,
// they must be deleted in smaller batches.
func TestWhatCannotBeRecordedAtOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := postgres(t)
	slow(t, db, "once_outbox")
	msgs := make([]*message.Message, 1000)
	for i := range msgs {
		msgs[i] = msg(fmt.Sprint(i), "")
	}
	put(t, db, schema.Config{}, "t", msgs...)
	cfg := quick(schema.Config{})
	cfg.Lease = 2 * time.Second
	start(t, db, &pipelined{broker: newBroker()}, cfg)
	drained(t, db)
}

// slow makes deleting from a table slow.
func slow(t *testing.T, db *sql.DB, table string) {
	t.Helper()
	exec(t, db, `CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.005); RETURN OLD; END $$`)
	exec(t, db, `CREATE TRIGGER slowly BEFORE DELETE ON `+table+` FOR EACH ROW EXECUTE FUNCTION slowly()`)
}

func TestWhatCannotBeForgottenAtOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := postgres(t)
	slow(t, db, "once_outbox_sent")
	exec(t, db, `INSERT INTO once_outbox_sent (position, message_id, topic, payload, metadata, created_at, sent_at)
		SELECT i, i, 't', 'payload', '{}', now(), now() - interval '1 hour' FROM generate_series(1, 1000) AS i`)
	cfg := quick(schema.Config{})
	cfg.Lease = 2 * time.Second
	cfg.KeepSent = time.Minute
	start(t, db, &pipelined{broker: newBroker()}, cfg)
	eventually(t, "it is forgotten", func() bool { return count(t, db, `SELECT COUNT(*) FROM once_outbox_sent`) == 0 })
}

// If reading a batch takes longer than the timeout of one transaction, because the
// network is slow, the forwarder must read smaller batches.
func TestWhatCannotBeReadAtOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	for i := range 20 {
		m := msg(fmt.Sprint(i), "")
		m.Payload = make([]byte, 256<<10)
		put(t, db.DB, schema.Config{}, "t", m)
	}
	dsn, err := url.Parse(db.DSN)
	kit.OK(t, err)
	dsn.Host = narrow(t, dsn.Host)
	far, err := sql.Open(db.Dialect, dsn.String())
	kit.OK(t, err)
	t.Cleanup(func() { _ = far.Close() })
	cfg := quick(schema.Config{})
	cfg.Lease = 2 * time.Second
	start(t, far, &pipelined{broker: newBroker()}, cfg)
	drained(t, db.DB)
}

// narrow starts a proxy for an address and returns the proxy's address. The proxy
// passes on at most 1 MiB per second of the server's data.
func narrow(t *testing.T, to string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	kit.OK(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() {
				defer far.Close()
				_, _ = io.Copy(far, near)
			}()
			go func() {
				defer near.Close()
				for {
					if _, err := io.CopyN(near, far, 32<<10); err != nil {
						return
					}
					takeTime(time.Second / 32)
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// If the broker refuses all messages in flight, and recording the attempts takes longer
// than the timeout of one transaction, they must be recorded in smaller batches.
func TestWhatCannotBeChargedAtOnce(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := postgres(t)
	exec(t, db, `CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.005); RETURN NEW; END $$`)
	exec(t, db, `CREATE TRIGGER slowly BEFORE UPDATE ON once_outbox FOR EACH ROW EXECUTE FUNCTION slowly()`)
	msgs := make([]*message.Message, 1000)
	for i := range msgs {
		msgs[i] = msg(fmt.Sprint(i), "")
	}
	put(t, db, schema.Config{}, "t", msgs...)
	b := newBroker().answering(func(d delivery) error {
		if d.attempt == 1 {
			return refusal{errors.New("not yet")}
		}
		return nil
	})
	cfg := quick(schema.Config{})
	cfg.Lease = 2 * time.Second
	start(t, db, &pipelined{broker: b}, cfg)
	drained(t, db)
}

// Trap 23. While messages are in flight, the forwarder must hold no lock in the
// database.
func TestTrap23_NothingIsHeldWhilePublishing(t *testing.T) {
	t.Parallel()
	database := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), database.DB, schema.Config{}))
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
	kit.WantNumber(t, mine, 20, `SELECT COUNT(*) FROM (SELECT FROM once_outbox FOR UPDATE NOWAIT) AS free`)
	for _, table := range []string{"once_outbox", "once_slots", "once_blocked_keys"} { // locks on several tables could deadlock with a read
		tx, end, err := dialect.Begin(t.Context(), mine, nil)
		kit.OK(t, err)
		_, err = tx.ExecContext(t.Context(), `SET LOCAL lock_timeout = '30s'; LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`)
		end()
		if err != nil {
			t.Fatalf("%v: a read holds no lock for long", err)
		}
	}
	close(release)
	drained(t, db)
	b.triedTimes(t, "0", 1)
}

// Trap 24. Reads must stay fast while an open snapshot keeps deleted rows from being
// vacuumed: a read must not scan these rows again.
func TestTrap24_AHeldSnapshotDoesNotSlowDownReads(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	db := alone(t)
	snapshot, err := db.Conn(t.Context())
	kit.OK(t, err)
	defer snapshot.Close()
	kit.Exec(t, snapshot, `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`)

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

// Trap 117. A row that the database does not delete, without an error, is sent once. Its
// slot waits until the row can be deleted. The other slots go on.
func TestTrap117_RowThatStaysIsSentOnce(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		allow := kit.Ignore(t, db, string(config.Dialect), "DELETE", "once_outbox", "OLD.message_id = 'stays'")
		same := "k"
		if outboxrow.SlotOf("", same) == outboxrow.SlotOf("", "other") {
			t.Fatal("the two keys have one slot")
		}
		b, logs := newBroker(), &kit.Logs{}
		c := quick(config)
		c.Logger = logs
		put(t, db, config, "t", msg("stays", same), msg("other", "other"))
		start(t, db, b, c)

		const says = "ERROR Rows of sent messages could not be deleted, their slots are paused"
		eventually(t, "the error is logged", func() bool {
			return logs.Count(says, "1 rows of sent messages were not deleted (the first has position 1) in table \"once_outbox\"") > 0
		})
		put(t, db, config, "t", msg("successor", same), msg("more", "other"))
		eventually(t, "the other slot goes on", func() bool { return b.has("other", "more") })
		eventually(t, "only the rows of the slot stay", func() bool { return pending(t, db) == 2 })
		if b.has("successor") {
			t.Error("a later message of the paused slot was sent")
		}

		allow()
		drained(t, db)
		if got, want := b.ids(func(d delivery) bool { return d.key == same }), []string{"stays", "successor"}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
		for _, id := range []string{"stays", "successor", "other", "more"} {
			if n := b.tries(id); n != 1 {
				t.Errorf("%s was sent %d times, want once", id, n)
			}
		}
		if n := logs.Count(says, ""); n != 1 {
			t.Errorf("the error was logged %d times, want once", n)
		}
	})
}

// Release reads the waiting messages of a key, and commits later. A message that is
// committed in between must be sent in order. Release does not see this message, and
// the forwarder has already read past it, because its key was blocked. So later
// messages of the key could be sent first.
func TestReleaseWhileAMessageOfTheKeyIsCommitted(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	db := alone(t)
	b := newBroker().answering(func(d delivery) error {
		if d.id == "head" {
			return hopeless{errors.New("no")}
		}
		return nil
	})
	cfg := quick(schema.Config{})
	cfg.AfterDead = forwarder.BlockKey
	start(t, db, b, cfg)
	put(t, db, schema.Config{}, "t", msg("head", "key"))
	eventually(t, "dead", func() bool { return countDead(t, db) == 1 })
	box, err := outbox.New(outbox.Config{})
	kit.OK(t, err)
	open := kit.Begin(t, db)
	kit.OK(t, box.Publisher(open).Publish("t", msg("late", "key")))
	free := func(from int) {
		for i := range 5 {
			id := fmt.Sprint("free", from+i)
			put(t, db, schema.Config{}, "t", msg(id, ""))
			eventually(t, "free", func() bool { return b.has(id) })
			giveTime(50 * time.Millisecond)
		}
	}
	free(0)
	lock := kit.Begin(t, db)
	kit.OK(t, kit.Err(lock.Exec(`LOCK TABLE once_audit IN SHARE MODE`)))
	released := make(chan error, 1)
	letters := deadLetters(t, db, schema.Config{})
	go func() { released <- letters.Release(t.Context(), ann, "key") }()
	eventually(t, "waits", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND query LIKE '%once_audit%' AND datname = current_database()`) > 0
	})
	kit.OK(t, open.Commit())
	free(10)
	kit.OK(t, lock.Rollback())
	kit.OK(t, <-released)
	put(t, db, schema.Config{}, "t", msg("later", "key"))
	drained(t, db)
	if got, want := b.ids(func(d delivery) bool { return d.key == "key" }), []string{"late", "later"}; !slices.Equal(got, want) {
		t.Fatalf("b.ids is %q, want %q", got, want)
	}
}
