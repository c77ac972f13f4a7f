package parked_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

var inOrder = []parked.Subscription{{Consumer: "c", KeyOrder: true}}

func keyed(id, key string) *message.Message {
	msg := message.NewMessage(id, nil)
	msg.Metadata[meta.OrderingKey] = key
	return msg
}

// A row is added behind a head at the moment in which that goes. It does not
// wait for a head that is gone. (SQLite has one writer.)
func TestKeyOrderNobodyWaitsForAHeadThatIsGone(t *testing.T) {
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) { aHeadGoes(t, isolation) })
	}
}

// aHeadGoes is that with a default of the database.
func aHeadGoes(t *testing.T, isolation string) {
	db := testkit.Postgres(t)
	s := newStore(t, db)
	setIsolation(t, db, isolation)
	if err := s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a")); err != nil {
		t.Fatal(err)
	}
	head := claim(t, s, selection)[0]

	// The transaction that adds a2 comes to a row that another one is adding.
	blocker := message.NewMessage("blocker", nil)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(t.Context(), `INSERT INTO once_parked (consumer, topic, message_id, digest, envelope, state, due_at)
		VALUES ('c', 't', 'blocker', $1, '', 'waiting', now())`, parked.Digest(blocker))
	if err != nil {
		t.Fatal(err)
	}
	waiting := func() int { return waitingForLocks(t, db) }
	added, resolved := make(chan error, 1), make(chan error, 1)
	go func() { added <- s.DeliverTo(t.Context(), "t", inOrder, keyed("a2", "a"), blocker) }()
	testkit.Eventually(t, 20*time.Second, "a2 is added", func() bool { return waiting() == 1 })
	go func() { resolved <- s.Resolve(t.Context(), head.Claim) }()
	testkit.Eventually(t, 20*time.Second, "the head goes, or waits", func() bool { return waiting() == 2 || len(resolved) == 1 })
	if err := errors.Join(tx.Rollback(), <-added, <-resolved); err != nil {
		t.Fatal(err)
	}
	if claimed := claim(t, s, selection); len(claimed) != 2 || claimed[0].Message.UUID != "a2" {
		t.Fatalf("claimed %+v", claimed)
	}
}

// Rows are added to keys, and their heads taken away, by several at once, often
// until nothing is left. All come through, in the order in which they were
// added.
func TestKeyOrderOfManyAtOnce(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
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
					if err := s.DeliverTo(t.Context(), "t", inOrder, keyed(fmt.Sprintf("%d.%d", k, n), fmt.Sprint(k))); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range 3 {
			all.Go(func() {
				testkit.Eventually(t, 2*time.Minute, "all are through", func() bool {
					claimed, err := s.Claim(t.Context(), selection)
					for _, c := range claimed {
						key, _, _ := strings.Cut(c.Message.UUID, ".")
						mu.Lock()
						seen[key] = append(seen[key], c.Message.UUID)
						mu.Unlock()
						err = errors.Join(err, s.Resolve(t.Context(), c.Claim))
						left.Add(-1)
					}
					if err != nil {
						t.Error(err)
					}
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

// Of a key one row can be claimed, whatever else there is of it.
func TestKeyOrderOneHead(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		other := []parked.Subscription{{Consumer: "other", KeyOrder: true}, {Consumer: "unordered"}}
		err := s.DeliverTo(t.Context(), "t", append(other, inOrder...),
			keyed("a1", "a"), keyed("b1", "b"), keyed("a2", "a"), keyed("a1", "a"), message.NewMessage("plain", nil))
		if err != nil {
			t.Fatal(err)
		}
		claimed := claim(t, s, selection)
		if len(claimed) != 3 || claimed[0].Message.UUID != "a1" || claimed[1].Message.UUID != "b1" || claimed[2].Message.UUID != "plain" {
			t.Fatalf("claimed %+v", claimed)
		}
		if err := s.Release(t.Context(), claimed[0].Claim, 0); err != nil { // and is still the head
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
		if err != nil || backlog.Held != 2 || backlog.BlockedKeys != 0 || backlog.Waiting != 3+3+4 {
			t.Fatalf("%+v, %v", backlog, err)
		}
	})
}

// A message that was resolved after a replay and is replayed by force has no
// place in an order that has gone on.
func TestKeyOrderAForcedReplayIsOnItsOwn(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
		hold := selection
		hold.Order = parked.BlockWhileQuarantined
		if err := s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a"), keyed("a2", "a")); err != nil {
			t.Fatal(err)
		}
		first := claim(t, s, hold)[0]
		if err := s.QuarantineClaim(t.Context(), "c", first.Claim, parked.Failure{Err: errHandler}); err != nil {
			t.Fatal(err)
		}
		act := parked.Act{Actor: "test", Why: "test"}
		if err := s.Replay(t.Context(), act, []int64{first.ID}); err != nil {
			t.Fatal(err)
		}
		if err := s.Resolve(t.Context(), claim(t, s, hold)[0].Claim); err != nil {
			t.Fatal(err)
		}
		filter := parked.Filter{IDs: []int64{first.ID}}
		replay, err := s.BeginReplay(t.Context(), act, filter, parked.Plan{Force: true}, selection.Lease)
		if err != nil {
			t.Fatal(err)
		}
		if moved, _, err := s.AdvanceReplay(t.Context(), replay, 10, selection.Lease); err != nil || moved != 1 {
			t.Fatalf("moved %d, %v", moved, err)
		}
		if claimed := claim(t, s, hold); len(claimed) != 2 || claimed[0].Key != (parked.Key{}) || claimed[1].Key == (parked.Key{}) {
			t.Fatalf("claimed %+v", claimed)
		}
	})
}

// A handler that stands still has a copy of the message that holds a key. Who
// discards that is told, and does not keep what comes behind it from being stored.
func TestKeyOrderADiscardDoesNotKeepTheKeyWaiting(t *testing.T) {
	db := testkit.Postgres(t)
	s := newStore(t, db)
	if err := s.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a")); err != nil {
		t.Fatal(err)
	}
	sel := selection
	sel.Order = parked.BlockWhileQuarantined
	head := claim(t, s, sel)[0].Claim
	d := &parked.Delivery{Consumer: "c", Topic: "t", Claim: head}
	if _, err := s.Quarantine(t.Context(), d, keyed("a1", "a"), parked.Failure{Err: errors.New("no"), Reason: "failed"}, nil); err != nil {
		t.Fatal(err)
	}
	handler, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = handler.Rollback() }()
	if _, err := handler.ExecContext(t.Context(), `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('a1', 'c', '')`); err != nil {
		t.Fatal(err)
	}
	act := parked.Act{Actor: "ann"}
	discarded, stored := make(chan error, 1), make(chan error, 1)
	go func() { discarded <- s.Discard(t.Context(), act, []int64{head.ID}) }()
	testkit.Eventually(t, 20*time.Second, "it waits for the handler", func() bool { return waitingForLocks(t, db) == 1 })
	go func() { stored <- s.DeliverTo(t.Context(), "t", inOrder, keyed("a2", "a")) }()
	select {
	case err := <-stored:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("what comes behind it is not stored")
	}
	if err := handler.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-discarded; !errors.Is(err, parked.ErrClaimed) {
		t.Errorf("got %v, want ErrClaimed", err)
	}
	if err := s.Discard(t.Context(), act, []int64{head.ID}); err != nil {
		t.Error(err)
	}
}

// A transaction that adds to one ordering key does not keep those of other keys
// waiting. (SQLite has one writer.)
func TestKeyOrderOneKeyDoesNotWaitForAnother(t *testing.T) {
	db := testkit.Postgres(t)
	s := newStore(t, db)
	_, err := db.ExecContext(t.Context(), `
		CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
		CREATE TRIGGER slowly BEFORE INSERT ON once_parked FOR EACH ROW WHEN (NEW.message_id = 'slow') EXECUTE FUNCTION slowly()`)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		_, err = tx.ExecContext(t.Context(), `SELECT pg_advisory_xact_lock(1)`)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	added := make(chan error, 2)
	go func() { added <- s.DeliverTo(t.Context(), "t", inOrder, keyed("slow", "a")) }()
	testkit.Eventually(t, 20*time.Second, "the first is being added", func() bool { return waitingForLocks(t, db) == 1 })

	go func() { added <- s.DeliverTo(t.Context(), "t", inOrder, keyed("b1", "b")) }()
	testkit.Eventually(t, 20*time.Second, "the other is added, or waits", func() bool {
		return len(added) == 1 || waitingForLocks(t, db) == 2
	})
	if len(added) == 0 {
		t.Error("it waits for a message of another key")
	}
	if err := errors.Join(tx.Rollback(), <-added, <-added); err != nil {
		t.Fatal(err)
	}
}

// An ordering key of bytes that a text column cannot hold, or of too many, is
// kept like any other.
func TestKeyOrderOfOddKeys(t *testing.T) {
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		s := newStore(t, db)
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
				if err := s.Resolve(t.Context(), c.Claim); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
