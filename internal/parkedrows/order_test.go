package parkedrows_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
)

var inOrder = []parkedrows.Subscription{{Consumer: "c", KeyOrder: true}}

func keyed(id, key string) *message.Message {
	msg := message.NewMessage(id, nil)
	msg.Metadata[meta.OrderingKey] = key
	return msg
}

// If the first message of a key is a copy of a settled message, it is not stored. The
// next message of the key becomes the head.
func TestKeyOrderCopyInABatchBlocksNoKey(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a")))
		head := claim(t, s, selection)[0].Claim
		head.Keep = true
		kit.OK(t, s.Resolve(t.Context(), head))
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a"), keyed("a2", "a"), keyed("a3", "a")))
		if claimed := claim(t, s, selection); len(claimed) != 1 || claimed[0].Message.UUID != "a2" {
			t.Fatalf("claimed %+v, want a2", claimed)
		}
	})
}

// A row is added behind a head while the head is settled. The row must not wait for the
// settled head. SQLite is not tested, because it has one writer.
func TestKeyOrderNewRowDoesNotWaitForSettledHead(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) { aHeadGoes(t, isolation) })
	}
}

// aHeadGoes runs TestKeyOrderNewRowDoesNotWaitForSettledHead with one default isolation
// level.
func aHeadGoes(t *testing.T, isolation string) {
	db := kit.Postgres(t)
	s := newStore(t, db)
	setIsolation(t, db, isolation)
	kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a")))
	head := claim(t, s, selection)[0]

	// The transaction that adds a2 waits at a row that another transaction is adding.
	blocker := message.NewMessage("blocker", nil)
	tx, err := db.BeginTx(t.Context(), nil)
	kit.OK(t, err)
	defer func() { _ = tx.Rollback() }()
	kit.Exec(t, tx, `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		VALUES ('c', 't', 'blocker', $1, '', 'waiting', now())`, parkedrows.Digest(blocker))
	waiting := func() int { return waitingForLocks(t, db) }
	added, resolved := make(chan error, 1), make(chan error, 1)
	go func() { added <- s.DeliverTo(t.Context(), "t", inOrder, keyed("a2", "a"), blocker) }()
	kit.Eventually(t, 20*time.Second, "a2 is added", func() bool { return waiting() == 1 })
	go func() { resolved <- s.Resolve(t.Context(), head.Claim) }()
	kit.Eventually(t, 20*time.Second, "the head goes, or waits", func() bool { return waiting() == 2 || len(resolved) == 1 })
	kit.OK(t, errors.Join(tx.Rollback(), <-added, <-resolved))
	if claimed := claim(t, s, selection); len(claimed) != 2 || claimed[0].Message.UUID != "a2" {
		t.Fatalf("claimed %+v", claimed)
	}
}

// Several goroutines add rows to keys and settle their heads, often until a key has no
// rows. All rows are claimed in the order in which they were stored.
func TestKeyOrderWithConcurrentWriters(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		const keys, rows = 4, 25
		var (
			all  sync.WaitGroup
			mu   sync.Mutex
			seen = map[string][]string{}
			left atomic.Int32
		)
		left.Store(keys * rows)
		for k := range keys {
			all.Go(func() {
				for n := range rows {
					kit.Check(t, s.DeliverTo(t.Context(), "t", inOrder, keyed(fmt.Sprintf("%d.%d", k, n), fmt.Sprint(k))))
				}
			})
		}
		for range 3 {
			all.Go(func() {
				kit.Eventually(t, 2*time.Minute, "all are through", func() bool {
					claimed, err := s.Claim(t.Context(), selection)
					for _, c := range claimed {
						key, _, _ := strings.Cut(c.Message.UUID, ".")
						mu.Lock()
						seen[key] = append(seen[key], c.Message.UUID)
						mu.Unlock()
						err = errors.Join(err, s.Resolve(t.Context(), c.Claim))
						left.Add(-1)
					}
					kit.Check(t, err)
					return left.Load() <= 0
				})
			})
		}
		all.Wait()
		for k := range keys {
			got := seen[fmt.Sprint(k)]
			for n, id := range got {
				if id != fmt.Sprintf("%d.%d", k, n) {
					t.Fatalf("key %d came as %v", k, got)
				}
			}
		}
	})
}

// Only one row of a key can be claimed at a time, however many rows the key has.
func TestKeyOrderKeyHasOneHead(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		other := []parkedrows.Subscription{{Consumer: "other", KeyOrder: true}, {Consumer: "unordered"}}
		kit.OK(t, s.DeliverTo(t.Context(), "t", append(other, inOrder...),
			keyed("a1", "a"), keyed("b1", "b"), keyed("a2", "a"), keyed("a1", "a"), message.NewMessage("plain", nil)))
		claimed := claim(t, s, selection)
		if len(claimed) != 3 || claimed[0].Message.UUID != "a1" || claimed[1].Message.UUID != "b1" || claimed[2].Message.UUID != "plain" {
			t.Fatalf("claimed %+v", claimed)
		}
		if err := s.Release(t.Context(), claimed[0].Claim, 0); err != nil { // it is still the head
			t.Fatal(err)
		}
		claimed = claim(t, s, selection)
		if len(claimed) != 1 || claimed[0].Message.UUID != "a1" {
			t.Fatalf("claimed %+v", claimed)
		}
		unordered := selection
		unordered.Consumer = "unordered"
		if claimed := claim(t, s, unordered); len(claimed) != 4 {
			t.Fatalf("claimed %d of the consumer that keeps no order", len(claimed))
		}
		backlog, err := s.Backlog(t.Context())
		if err != nil || backlog.WaitingForKey != 2 || backlog.BlockedKeys != 0 || backlog.Waiting != 3+3+4 {
			t.Fatalf("%+v, %v", backlog, err)
		}
	})
}

// A transaction that adds a row to one ordering key does not delay transactions of
// other keys. SQLite is not tested, because it has one writer.
func TestKeyOrderKeysDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newStore(t, db)
	kit.Exec(t, db, `
		CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
		CREATE TRIGGER slowly BEFORE INSERT ON once_parked FOR EACH ROW WHEN (NEW.message_id = 'slow') EXECUTE FUNCTION slowly()`)
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), `SELECT pg_advisory_xact_lock(1)`)
	}
	kit.OK(t, err)
	defer func() { _ = tx.Rollback() }()
	added := make(chan error, 2)
	go func() { added <- s.DeliverTo(t.Context(), "t", inOrder, keyed("slow", "a")) }()
	kit.Eventually(t, 20*time.Second, "the first is being added", func() bool { return waitingForLocks(t, db) == 1 })

	go func() { added <- s.DeliverTo(t.Context(), "t", inOrder, keyed("b1", "b")) }()
	kit.Eventually(t, 20*time.Second, "the other is added, or waits", func() bool {
		return len(added) == 1 || waitingForLocks(t, db) == 2
	})
	if len(added) == 0 {
		t.Error("it waits for a message of another key")
	}
	kit.OK(t, errors.Join(tx.Rollback(), <-added, <-added))
}

// The order is also kept for an ordering key that a text column cannot store unchanged.
func TestKeyOrderOfUnusualKeys(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		keys := []string{"nul\x00", "bad\xff", strings.Repeat("x", 6400)}
		for n, key := range keys {
			first, second := keyed(fmt.Sprintf("%d.1", n), key), keyed(fmt.Sprintf("%d.2", n), key)
			if err := s.DeliverTo(t.Context(), "t", inOrder, first, second); err != nil {
				t.Fatalf("%.9q: %v", key, err)
			}
		}
		for nth := 1; nth <= 2; nth++ {
			claimed := claim(t, s, selection)
			if len(claimed) != len(keys) {
				t.Fatalf("%d claimed, want the heads of %d keys", len(claimed), len(keys))
			}
			for n, c := range claimed {
				if want := fmt.Sprintf("%d.%d", n, nth); c.Message.UUID != want {
					t.Errorf("%s was claimed, want %s", c.Message.UUID, want)
				}
				kit.OK(t, s.Resolve(t.Context(), c.Claim))
			}
		}
	})
}

// Trap 99. A held row leaves the order of its key at the same moment as it becomes the
// head. The row behind it must then become the head. SQLite is not tested, because it
// has one writer.
func TestKeyOrderHeldRowBecomesTheHeadBeforeItLeaves(t *testing.T) {
	db := kit.Postgres(t)
	s := newStore(t, db)
	kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a"), keyed("a2", "a"), keyed("a3", "a")))
	leave := func(id string, before func()) error {
		return s.ReplaceHeads(t.Context(), func(tx *sql.Tx) (ids []int64, err error) {
			ids = make([]int64, 1)
			return ids, tx.QueryRowContext(t.Context(), `SELECT id FROM once_parked WHERE message_id = $1`, id).Scan(&ids[0])
		}, func(tx *sql.Tx) error {
			before()
			_, err := tx.ExecContext(t.Context(), `UPDATE once_parked SET state = 'discarded' WHERE message_id = $1`, id)
			return err
		})
	}
	var second, entered sync.WaitGroup
	var works atomic.Bool
	first := make(chan struct{})
	entered.Add(1)
	second.Go(func() {
		entered.Wait()
		kit.Check(t, leave("a2", func() { works.Store(true); <-first }))
	})
	err := leave("a1", func() {
		entered.Done()
		kit.Eventually(t, 20*time.Second, "a2 waits for the key, or leaves without it", func() bool {
			return works.Load() || waitingForLocks(t, db) == 1
		})
	})
	close(first)
	second.Wait()
	kit.OK(t, err)
	var state string
	err = db.QueryRowContext(t.Context(), `SELECT state FROM once_parked WHERE message_id = 'a3'`).Scan(&state)
	if err != nil || state != "waiting" {
		t.Errorf("a3 is %s: %v", state, err)
	}
}

// If a head is postponed and leaves the order of its key, the next row becomes the head
// immediately. No later repair is needed.
func TestKeyOrderPostponedHeadThatLeavesHasASuccessor(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s *parkedrows.Store) {
		kit.OK(t, s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a"), keyed("a2", "a")))
		exec(t, s, `UPDATE {parked} SET due_at = {after $1} WHERE message_id = 'a2'`, -time.Hour.Milliseconds()) // stored long ago
		head := claim(t, s, selection)[0]
		head.Order = parkedrows.BlockWhileRunning
		kit.OK(t, s.Postpone(t.Context(), "c", head.Claim, parkedrows.Failure{Attempts: 1, Rounds: 1}, time.Hour))
		if row := rows.Parked(t, s)[1]; time.Since(row.DueAt) > time.Minute { // otherwise the lag would include its time behind the head
			t.Errorf("the successor is due since %v", row.DueAt)
		}
		if claimed := claim(t, s, selection); len(claimed) != 1 || claimed[0].Message.UUID != "a2" {
			t.Fatalf("claimed %+v", claimed)
		}
	})
}
