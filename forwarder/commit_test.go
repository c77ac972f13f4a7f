package forwarder_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// open begins a transaction and publishes messages in it.
func open(t *testing.T, db *sql.DB, msgs ...*message.Message) *sql.Tx {
	t.Helper()
	tx, release, err := dialect.Begin(t.Context(), db, nil)
	kit.OK(t, err)
	t.Cleanup(release)
	kit.OK(t, outbox.Publisher(tx).Publish("t", msgs...))
	return tx
}

func TestTrap01_LateCommitOfALowerPosition(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	b := newBroker()
	start(t, db, b, quick(schema.Config{}))

	first, third := open(t, db, msg("1", "")), open(t, db, msg("2", ""))
	for i := 3; i <= 6; i++ {
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint(i), ""))
	}
	eventually(t, "the others do not wait", func() bool { return b.has("3", "4", "5", "6") && pending(t, db) == 0 })
	kit.OK(t, third.Commit())
	eventually(t, "the late one is sent", func() bool { return b.has("2") && pending(t, db) == 0 })
	for i := 7; i <= 9; i++ { // meanwhile, messages with higher positions are committed and sent
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint(i), ""))
		eventually(t, "it is sent", func() bool { return b.has(fmt.Sprint(i)) })
	}
	kit.OK(t, first.Commit())
	eventually(t, "the last one is sent", func() bool { return b.has("1") })
	drained(t, db)
	if len(b.stored) != 9 {
		t.Fatalf("len(b.stored) is %d, want 9: %+v", len(b.stored), b.stored)
	}
}

// A writer may be delayed between taking its position and writing its row. Its message
// must still be sent, although higher positions were committed in between.
func TestTrap01_AWriterThatStandsStill(t *testing.T) {
	t.Parallel()
	db := alone(t) // after a checkpoint, which other tests cause, a sequence writes to the log again
	exec(t, db, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END'`)
	exec(t, db, `CREATE TRIGGER wait BEFORE INSERT ON once_outbox FOR EACH ROW WHEN (NEW.message_id = 'slow') EXECUTE FUNCTION wait()`)
	b := newBroker()
	start(t, db, b, quick(schema.Config{}))
	// The first value of a sequence writes to the log, which assigns a transaction id.
	// This message makes sure that it has happened.
	put(t, db, schema.Config{}, "t", msg("first", ""))
	drained(t, db)

	barrier, release, err := dialect.Begin(t.Context(), db, nil)
	kit.OK(t, err)
	t.Cleanup(release)
	kit.OK(t, kit.Err(barrier.Exec(`SELECT pg_advisory_xact_lock(1)`)))
	var writing sync.WaitGroup
	writing.Go(func() {
		err := outbox.InTx(context.Background(), db, func(_ *sql.Tx, events message.Publisher) error {
			return events.Publish("t", msg("slow", ""))
		})
		kit.Check(t, err)
	})
	t.Cleanup(writing.Wait)
	t.Cleanup(release)
	eventually(t, "it stands still", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
		                     WHERE l.locktype = 'advisory' AND NOT l.granted AND a.datname = current_database()`) == 1
	})
	for i := range 9 { // messages with higher positions are sent
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint(i), ""))
		eventually(t, "it is sent", func() bool { return b.has(fmt.Sprint(i)) && pending(t, db) == 0 })
	}
	kit.OK(t, barrier.Commit())
	eventually(t, "the slow one is sent", func() bool { return b.has("slow") })
}

// The younger of two transactions may take a lower position than the last position of the
// older transaction. The message of the younger transaction must be sent, although no
// other transaction has ended after the commit of the older one.
func TestTrap01_ALowerPositionOfAYoungerTransaction(t *testing.T) {
	t.Parallel()
	db := alone(t)
	answered := make(chan struct{})
	b := &pipelined{broker: newBroker().answering(func(d delivery) error {
		if d.id != "younger" {
			<-answered
		}
		return nil
	})}
	start(t, db, b, quick(schema.Config{}))
	t.Cleanup(sync.OnceFunc(func() { close(answered) }))

	older := open(t, db, msg("1", ""))
	younger := open(t, db, msg("younger", ""))
	kit.OK(t, outbox.Publisher(older).Publish("t", msg("3", "")))
	kit.OK(t, older.Commit())
	eventually(t, "the older one's are under way", func() bool { return b.tries("1") == 1 && b.tries("3") == 1 })
	reads := func() int {
		return count(t, db, `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`)
	}
	before := reads()
	eventually(t, "they are passed by reads", func() bool { giveTime(50 * time.Millisecond); return reads() > before+20 })
	kit.OK(t, younger.Commit())
	eventually(t, "the younger one's is sent", func() bool { return b.has("younger") })
}

func TestTrap02_OtherTransactionsDoNotHoldItUp(t *testing.T) {
	t.Parallel()
	db, other := postgres(t), kit.Postgres(t)
	exec(t, other.DB, `CREATE TABLE x (y int)`)
	for _, some := range []*sql.DB{db, other.DB} {
		tx, release, err := dialect.Begin(t.Context(), some, nil)
		kit.OK(t, err)
		t.Cleanup(release)
		kit.OK(t, kit.Err(tx.Exec(`SELECT pg_current_xact_id()`)))
	}
	b := newBroker()
	start(t, db, b, quick(schema.Config{}))
	for i := range 20 {
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint(i), fmt.Sprint("key", i%2)))
	}
	drained(t, db)
	if len(b.stored) != 20 {
		t.Fatalf("len(b.stored) is %d, want 20: %+v", len(b.stored), b.stored)
	}
}

// Messages of one key are sent in the order of their writers' commits if the writers wait
// for each other. Here the transactions commit in another order than they take positions,
// except if they write messages of the same key.
func TestTrap62_OrderOfWritersThatWaitForEachOther(t *testing.T) {
	t.Parallel()
	const keys, writers, each = 5, 8, 25
	db := postgres(t)
	exec(t, db, `CREATE TABLE counters (key text PRIMARY KEY, n int NOT NULL)`)
	for k := range keys {
		exec(t, db, `INSERT INTO counters VALUES ($1, 0)`, fmt.Sprint("key", k))
	}
	b := newBroker()
	start(t, db, &pipelined{broker: b}, quick(schema.Config{}))

	var writing sync.WaitGroup
	for w := range writers {
		random := rand.New(rand.NewPCG(1, uint64(w)))
		writing.Go(func() {
			for i := range each {
				err := outbox.InTx(context.Background(), db, func(tx *sql.Tx, events message.Publisher) error {
					// This message takes a position first and is committed last.
					if err := events.Publish("t", msg(fmt.Sprintf("free-%d-%d", w, i), "")); err != nil {
						return err
					}
					key, n := fmt.Sprint("key", random.IntN(keys)), 0
					if err := tx.QueryRow(`UPDATE counters SET n = n + 1 WHERE key = $1 RETURNING n`, key).Scan(&n); err != nil {
						return err
					}
					takeTime(time.Duration(random.IntN(3)) * time.Millisecond)
					return events.Publish("t", msg(fmt.Sprintf("%s-%06d", key, n), key))
				})
				kit.Check(t, err)
			}
		})
	}
	writing.Wait()
	drained(t, db)
	if len(b.stored) != 2*writers*each {
		t.Fatalf("len(b.stored) is %d, want %d: %+v", len(b.stored), 2*writers*each, b.stored)
	}
	if len(b.overlaps) != 0 {
		t.Fatalf("b.overlaps are %q, want none", b.overlaps)
	}
	for k := range keys {
		key := fmt.Sprint("key", k)
		ids := b.ids(func(d delivery) bool { return d.key == key })
		if !slices.IsSorted(ids) {
			t.Fatalf("ids is not sorted: %v", ids)
		}
	}
}

func TestNothingIsWrittenWhenIdle(t *testing.T) {
	t.Parallel()
	db := alone(t)
	put(t, db, schema.Config{}, "t", msg("1", ""))

	cfg := quick(schema.Config{})
	cfg.PollMax = 5 * time.Millisecond
	cfg.Lease = 3 * time.Minute // so that no renewal happens during the test
	b := newBroker()
	start(t, db, b, cfg)
	drained(t, db)
	next := func() int { return count(t, db, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`) }
	reads := func() int {
		return count(t, db, `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`)
	}
	before, readsBefore := next(), reads()
	eventually(t, "a hundred polls", func() bool { giveTime(50 * time.Millisecond); return reads() > readsBefore+100 })
	if got := next() - before; got > 1 {
		t.Fatalf("next()-before is %d, want at most 1: but for a renewal of the lease", got)
	}
}

// These tests are about two transactions that write messages of one key at the same
// time. Such messages have no order. But a message that is committed last, with a
// position below messages of its key that were already read, must be sent before the
// whole outbox is read again.

// goBy sends messages without a key, one after another, so that the cursor moves up to
// the lowest position that an open transaction can still use.
func goBy(t *testing.T, db *sql.DB, b *broker, name string) {
	t.Helper()
	for i := range 5 {
		id := fmt.Sprint(name, i)
		put(t, db, schema.Config{}, "t", msg(id, ""))
		eventually(t, "it is sent", func() bool { return b.has(id) })
		giveTime(50 * time.Millisecond)
	}
}

// If the queue of a key in memory is full, refills read the later messages of the key.
// A message of this key that is committed late must still be sent.
func TestTrap01_ALateCommitBelowARefill(t *testing.T) {
	t.Parallel()
	db := alone(t)
	reached, goOn := make(chan struct{}), make(chan struct{})
	b := newBroker().answering(func(d delivery) error {
		if d.id == "20" {
			close(reached)
			<-goOn
		}
		return nil
	})
	cfg := quick(schema.Config{})
	cfg.BatchSize, cfg.Window = 50, 20 // so that only few messages of a key are in memory
	late := open(t, db, msg("late", "key"))
	for i := range 60 {
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint(i), "key"))
	}
	start(t, db, &pipelined{broker: b}, cfg)
	proceed := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(proceed)
	<-reached
	kit.OK(t, late.Commit())
	goBy(t, db, b, "free")
	proceed()
	drained(t, db)
}

// When the first message of a key becomes a dead letter, the waiting messages of the
// key are dropped from memory. If one of them was committed late, it must still be
// sent.
func TestTrap01_ALateCommitBehindAHeadThatDies(t *testing.T) {
	t.Parallel()
	db := alone(t)
	reached, goOn := make(chan struct{}), make(chan struct{})
	b := newBroker().answering(func(d delivery) error {
		if d.id == "head" {
			close(reached)
			<-goOn
			return hopeless{errors.New("no")}
		}
		return nil
	})
	late := open(t, db, msg("late", "key"))
	put(t, db, schema.Config{}, "t", msg("head", "key"))
	start(t, db, &pipelined{broker: b}, quick(schema.Config{}))
	proceed := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(proceed)
	<-reached
	kit.OK(t, late.Commit())
	goBy(t, db, b, "free")
	proceed()
	drained(t, db)
}

// A message must be sent if it is committed late, while the first message of the same key
// waits for another attempt.
func TestTrap01_ALateCommitOfABlockedKey(t *testing.T) {
	t.Parallel()
	db := alone(t)
	var healed atomic.Bool
	b := newBroker().answering(func(d delivery) error {
		if d.id == "head" && !healed.Load() {
			return refusal{errors.New("not yet")}
		}
		return nil
	})
	late := open(t, db, msg("late", "key"))
	put(t, db, schema.Config{}, "t", msg("head", "key"))
	start(t, db, &pipelined{broker: b}, quick(schema.Config{}))
	eventually(t, "the key is blocked", func() bool { return count(t, db, `SELECT COUNT(*) FROM once_blocked_keys`) == 1 })
	kit.OK(t, late.Commit())
	goBy(t, db, b, "free")
	healed.Store(true)
	drained(t, db)
}

// A message must be sent if it is committed late, while a dead letter blocks its key, and
// the dead letter is then replayed.
func TestTrap01_ALateCommitOfAKeyBlockedByADeadLetter(t *testing.T) {
	t.Parallel()
	db := alone(t)
	var healed atomic.Bool
	b := newBroker().answering(func(d delivery) error {
		if d.id == "head" && !healed.Load() {
			return hopeless{errors.New("no")}
		}
		return nil
	})
	cfg := quick(schema.Config{})
	cfg.AfterDead = forwarder.BlockKey
	late := open(t, db, msg("late", "key"))
	put(t, db, schema.Config{}, "t", msg("head", "key"))
	start(t, db, &pipelined{broker: b}, cfg)
	eventually(t, "dead", func() bool { return countDead(t, db) == 1 })
	kit.OK(t, late.Commit())
	goBy(t, db, b, "free")
	healed.Store(true)
	kit.OK(t, kit.Err(deadLetters(t, db, schema.Config{}).ReplayMatching(t.Context(), ann, anybody, operate.Plan{})))
	drained(t, db)
	if got, want := b.ids(func(d delivery) bool { return d.key == "key" }), []string{"head", "late"}; !slices.Equal(got, want) {
		t.Fatalf("b.ids is %q, want %q", got, want)
	}
}

// Release reads the first waiting message of a key, and commits later. A message that
// is committed in between, with a lower position, must be sent.
func TestTrap01_ALateCommitDuringRelease(t *testing.T) {
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
	late := open(t, db, msg("late", "key"))
	put(t, db, schema.Config{}, "t", msg("next", "key"))
	goBy(t, db, b, "first")

	lock := kit.Begin(t, db)
	kit.OK(t, kit.Err(lock.Exec(`LOCK TABLE once_audit IN SHARE MODE`)))
	released := make(chan error, 1)
	letters := deadLetters(t, db, schema.Config{})
	go func() { released <- letters.Release(t.Context(), ann, "key") }()
	eventually(t, "it waits", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND query LIKE '%once_audit%' AND datname = current_database()`) > 0
	})
	kit.OK(t, late.Commit())
	goBy(t, db, b, "then")
	kit.OK(t, lock.Rollback())
	kit.OK(t, <-released)
	drained(t, db)
}

// After an error and once a minute, the forwarder reads the outbox from the start. This
// read must also find a row that somebody added by hand, even if refills have already
// read messages of the same key with higher positions.
func TestTheReadFromTheStartIsOfFullKeysToo(t *testing.T) {
	t.Parallel()
	db := alone(t)
	stops := map[string]chan struct{}{"20": make(chan struct{}), "40": make(chan struct{})}
	reached := make(chan string, len(stops))
	b := newBroker().answering(func(d delivery) error {
		if stop := stops[d.id]; stop != nil {
			reached <- d.id
			<-stop
		}
		return nil
	})
	cfg := quick(schema.Config{})
	cfg.BatchSize, cfg.Window = 50, 20 // so that only few messages of a key are in memory
	log := &kit.Logs{}
	cfg.Logger = log
	kit.OK(t, open(t, db, msg("leaves a gap", "")).Rollback())
	for i := range 100 {
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint(i), "key"))
	}
	start(t, db, &pipelined{broker: b}, cfg)
	for _, stop := range stops {
		t.Cleanup(sync.OnceFunc(func() {
			select {
			case <-stop:
			default:
				close(stop)
			}
		}))
	}
	<-reached
	goBy(t, db, b, "first")
	close(stops["20"])
	<-reached
	exec(t, db, `INSERT INTO once_outbox (position, message_id, topic, ordering_key, slot, payload, metadata)
		SELECT 1, 'by hand', topic, ordering_key, slot, payload, metadata FROM once_outbox WHERE message_id = '99'`)
	exec(t, db, `ALTER TABLE once_blocked_keys RENAME TO away`)
	eventually(t, "a read fails", func() bool { return log.Has("could not be read") })
	exec(t, db, `ALTER TABLE away RENAME TO once_blocked_keys`)
	goBy(t, db, b, "then")
	close(stops["40"])
	drained(t, db)
}
