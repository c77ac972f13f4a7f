package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// step is one step in the transaction of the caller named who.
type step func(tx *sql.Tx, who string) error

func lockRow(tx *sql.Tx, _ string) error {
	_, err := tx.Exec(`UPDATE accounts SET balance = balance + 1 WHERE id = 17`)
	return err
}

func publishKeyed(tx *sql.Tx, who string) error {
	msg := message.NewMessage(who, nil)
	outbox.SetOrderingKey(msg, "account-17")
	return outbox.Publisher(tx).Publish("accounts", msg)
}

func lockKey(tx *sql.Tx, _ string) error {
	return outbox.LockKey(context.Background(), tx, "account-17")
}

// Trap 85. A row gets its position when it is inserted. If a transaction publishes first,
// and then waits for a lock that another transaction holds, it commits later than that
// other transaction, but its event is sent first. Locking the row or the key before
// publishing prevents this.
func TestEventsOfAKeyAreInTheOrderOfCommits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps []step // both transactions do all these steps
		first int    // the first transaction does this many steps before the second begins
		order string // order in which the events are sent
	}{
		"published before the row is locked": {[]step{publishKeyed, lockRow}, 0, "second first"},
		"the row is locked first":            {[]step{lockRow, publishKeyed}, 1, "first second"},
		"the key is locked first":            {[]step{lockKey, publishKeyed, lockRow}, 1, "first second"},
	} {
		t.Run(name, func(t *testing.T) {
			db := postgres(t)
			exec(t, db, `CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)`)
			exec(t, db, `INSERT INTO accounts VALUES (17, 0)`)
			begin := func() *sql.Tx {
				tx := kit.Begin(t, db)
				t.Cleanup(func() { _ = tx.Rollback() })
				return tx
			}
			first, second := begin(), begin()
			if c.first == 0 { // the first transaction locks the row before the second one publishes
				kit.OK(t, lockRow(first, "first"))
			}
			for _, step := range c.steps[:c.first] {
				kit.OK(t, step(first, "first"))
			}
			done := make(chan error, 1)
			go func() {
				for _, step := range c.steps {
					if err := step(second, "second"); err != nil {
						done <- err
						return
					}
				}
				done <- second.Commit()
			}()
			kit.Eventually(t, time.Minute, "the second one waits for the first", func() bool { return waiting(t, db) == 1 })
			for _, step := range c.steps[c.first:] {
				kit.OK(t, step(first, "first"))
			}
			kit.OK(t, first.Commit())
			kit.OK(t, <-done)
			if got := published(t, db); got != c.order {
				t.Fatalf("published is %q, want %q", got, c.order)
			}
		})
	}
}

func exec(t *testing.T, db *sql.DB, query string) {
	t.Helper()
	kit.Exec(t, db, query)
}

// waiting returns how many transactions wait for a lock.
func waiting(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	kit.OK(t, db.QueryRow(`SELECT COUNT(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n))
	return n
}

// published returns the ids of the events, in the order in which they are sent.
func published(t *testing.T, db *sql.DB) string {
	t.Helper()
	rows, err := db.Query(`SELECT message_id FROM once_outbox ORDER BY position`)
	kit.OK(t, err)
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		kit.OK(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	kit.OK(t, rows.Err())
	return strings.Join(ids, " ")
}

// Trap 85. LockKey always locks keys in the same order, whatever the order of its
// arguments. So transactions with the same keys do not deadlock. The locks end with
// their transactions.
func TestKeysAreLockedInOneOrder(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	const rounds, workers = 30, 6
	keys := []string{"a", "b", "c", "d", "b"}
	failed := make(chan error, workers)
	for worker := range workers {
		go func() {
			for round := range rounds {
				mine := append(append([]string(nil), keys[(worker+round)%len(keys):]...), keys[:(worker+round)%len(keys)]...)
				err := outbox.InTx(t.Context(), db, func(tx *sql.Tx, _ message.Publisher) error {
					return outbox.LockKey(t.Context(), tx, mine...)
				})
				if err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	for range workers {
		kit.OK(t, <-failed)
	}
	var left int
	kit.OK(t, db.QueryRow(`SELECT COUNT(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE l.locktype = 'advisory' AND d.datname = current_database()`).Scan(&left))
	if left != 0 {
		t.Fatalf("left is %d, want 0", left)
	}
}

// Trap 85. A transaction that locks another key, or the same key with another table
// prefix, does not wait. In SQLite, which has one writer at a time, a transaction that
// locks a key becomes the writer.
func TestLockKeyBlocksOnlyTheSameKey(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		box := newOutbox(t, config)
		other := config
		other.Prefix = "other_"
		tx := kit.Begin(t, db)
		kit.OK(t, box.LockKey(t.Context(), tx, "a"))
		try := func(box *outbox.Outbox, key string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return box.InTx(ctx, db, func(tx *sql.Tx, _ message.Publisher) error {
				if config.Dialect == schema.SQLite {
					return box.LockKey(ctx, tx, key)
				}
				if _, err := tx.Exec(`SET LOCAL lock_timeout = '50ms'`); err != nil {
					return err
				}
				return box.LockKey(ctx, tx, key)
			})
		}
		if config.Dialect == schema.SQLite {
			done := kit.Go(func() error { return try(box, "b") })
			select {
			case err := <-done:
				t.Errorf("another transaction wrote meanwhile: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			kit.OK(t, tx.Rollback())
			kit.OK(t, <-done)
			return
		}
		kit.OK(t, try(box, "b"))
		kit.OK(t, try(newOutbox(t, other), "a"))
		if err := try(box, "a"); err == nil || !strings.Contains(err.Error(), "outbox: lock the ordering keys: ") {
			t.Fatalf(`try: got %v, want an error with "outbox: lock the ordering keys: "`, err)
		}
		kit.OK(t, tx.Rollback())
		kit.OK(t, try(box, "a"))
	})
}

func TestLockKeyRefusesInvalidArguments(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *sql.DB, config schema.Config) {
		box := newOutbox(t, config)
		if err := box.LockKey(t.Context(), nil, "a"); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Fatalf("LockKey: got %v, want ErrNoTransaction", err)
		}
		for _, keys := range [][]string{nil, {""}, {"a", ""}} {
			want := "outbox: LockKey needs at least one ordering key, and no empty key"
			err := box.InTx(t.Context(), db, func(tx *sql.Tx, _ message.Publisher) error { return box.LockKey(t.Context(), tx, keys...) })
			if err == nil || err.Error() != want {
				t.Fatalf("LockKey of %q: got %v, want %q", keys, err, want)
			}
		}
	})
}
