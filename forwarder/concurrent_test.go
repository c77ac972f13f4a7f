package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

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
	if err := late.Commit(); err != nil {
		t.Fatal(err)
	}
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
	if err := late.Commit(); err != nil {
		t.Fatal(err)
	}
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
	if err := late.Commit(); err != nil {
		t.Fatal(err)
	}
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
	eventually(t, "dead", func() bool { return dead(t, db) == 1 })
	if err := late.Commit(); err != nil {
		t.Fatal(err)
	}
	goBy(t, db, b, "free")
	healed.Store(true)
	if _, err := deadLetters(t, db, schema.Config{}).ReplayMatching(t.Context(), ann, anybody, deadletter.Plan{}); err != nil {
		t.Fatal(err)
	}
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
	eventually(t, "dead", func() bool { return dead(t, db) == 1 })
	late := open(t, db, msg("late", "key"))
	put(t, db, schema.Config{}, "t", msg("next", "key"))
	goBy(t, db, b, "first")

	lock, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(`LOCK TABLE once_audit IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	letters := deadLetters(t, db, schema.Config{})
	go func() { released <- letters.Release(t.Context(), ann, "key") }()
	eventually(t, "it waits", func() bool {
		return count(t, db, `SELECT COUNT(*) FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND query LIKE '%once_audit%' AND datname = current_database()`) > 0
	})
	if err := late.Commit(); err != nil {
		t.Fatal(err)
	}
	goBy(t, db, b, "then")
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
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
	log := &testkit.Logs{}
	cfg.Logger = log
	if err := open(t, db, msg("leaves a gap", "")).Rollback(); err != nil {
		t.Fatal(err)
	}
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
