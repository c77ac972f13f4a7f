package parked_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// keysAreWhole checks that each key of which rows are held has a head. It cannot
// have two: that is an index.
func keysAreWhole(t *testing.T, db testkit.Database) {
	t.Helper()
	var orphans int
	err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_parked AS h WHERE state = 'held' AND NOT EXISTS (
		SELECT 1 FROM once_parked AS p WHERE p.consumer = h.consumer AND p.topic = h.topic
		AND p.ordering_key = h.ordering_key AND p.state IN ('waiting', 'quarantined'))`).Scan(&orphans)
	if err != nil || orphans > 0 {
		t.Fatalf("%d rows are held by nobody, %v", orphans, err)
	}
}

// A batch has copies of what is in whatever state, and of its own, at the places
// of heads and behind them. Each message is handled once, and of a key in the
// order in which they were stored.
func TestKeyOrderOfBatchesWithCopies(t *testing.T) {
	for _, order := range []parked.KeyOrder{parked.BlockWhileRetried, parked.BlockWhileQuarantined, parked.BlockWhileRunning} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) { storeAndSettle(t, db, order) })
		})
	}
}

func storeAndSettle(t *testing.T, db testkit.Database, order parked.KeyOrder) {
	t.Helper()
	const keys, rounds = 3, 20
	s := newStore(t, db)
	rng := rand.New(rand.NewPCG(1, uint64(order)))
	var (
		sent   [keys]int
		seen   = map[string]int{}
		last   [keys]int
		hold   = selection
		failed []int64
		act    = parked.Act{Actor: "test", Why: "test"}
	)
	hold.Order, hold.Keep, hold.Limit = order, true, 5
	settle := func(c parked.Claimed) error {
		var key, n int
		if _, err := fmt.Sscanf(c.Message.UUID, "%d.%d", &key, &n); err != nil {
			t.Fatal(err)
		}
		switch again := seen[c.Message.UUID] > 0; {
		case rng.IntN(4) == 0:
			failed = append(failed, c.ID)
			return s.QuarantineClaim(t.Context(), "c", c.Claim, parked.Failure{Err: errHandler})
		case rng.IntN(16) == 0:
			seen[c.Message.UUID]++ // as good as handled
			return errors.Join(s.QuarantineClaim(t.Context(), "c", c.Claim, parked.Failure{Err: errHandler}),
				s.Discard(t.Context(), act, []int64{c.ID}))
		case n < last[key] && c.Key != parked.Key{}:
			t.Errorf("%s came after %d.%d", c.Message.UUID, key, last[key])
		case again:
			t.Errorf("%s came twice", c.Message.UUID)
		}
		last[key] = max(last[key], n)
		seen[c.Message.UUID]++
		return s.Resolve(t.Context(), c.Claim)
	}
	for range rounds {
		var msgs []*message.Message
		for range rng.IntN(12) {
			key := rng.IntN(keys)
			n := sent[key]
			if n > 0 && rng.IntN(2) == 0 {
				n = rng.IntN(n) // a copy
			} else {
				sent[key]++
			}
			msgs = append(msgs, keyed(fmt.Sprintf("%d.%d", key, n), fmt.Sprint("key", key)))
		}
		if err := s.DeliverTo(t.Context(), "t", inOrder, msgs...); err != nil {
			t.Fatal(err)
		}
		keysAreWhole(t, db)
		for _, c := range claim(t, s, hold) {
			if err := settle(c); err != nil {
				t.Fatal(err)
			}
		}
		keysAreWhole(t, db)
		if rng.IntN(3) == 0 {
			if err := s.Replay(t.Context(), act, failed); err != nil {
				t.Fatal(err)
			}
			failed = nil
			keysAreWhole(t, db)
		}
	}
	for left := -1; left != 0; keysAreWhole(t, db) {
		if err := s.Replay(t.Context(), act, failed); err != nil {
			t.Fatal(err)
		}
		left, failed = len(failed), nil
		for _, c := range claim(t, s, hold) {
			left++
			if err := settle(c); err != nil {
				t.Fatal(err)
			}
		}
	}
	for key, n := range sent {
		for i := range n {
			if id := fmt.Sprintf("%d.%d", key, i); seen[id] != 1 {
				t.Errorf("%s was handled %d times", id, seen[id])
			}
		}
	}
}

// Transactions that have many keys, each in an order of its own, wait for each
// other and not in a circle. (SQLite has one writer.)
func TestKeyOrderManyKeysAtOnceAreNoDeadlock(t *testing.T) {
	const keys, batches, size = 20, 30, 25
	db := testkit.Postgres(t)
	s := newStore(t, db)
	ctx := context.WithoutCancel(t.Context())
	var storing, settling sync.WaitGroup
	for n := range 3 {
		rng := rand.New(rand.NewPCG(2, uint64(n)))
		storing.Go(func() {
			for b := range batches {
				var msgs []*message.Message
				for range size {
					key := rng.IntN(keys) // others have copies
					msgs = append(msgs, keyed(fmt.Sprintf("%d.%d.%d", key, b, rng.IntN(3)), fmt.Sprint(key)))
				}
				if err := s.DeliverTo(ctx, "t", inOrder, msgs...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	stored := make(chan struct{})
	go func() { defer close(stored); storing.Wait() }()
	act := parked.Act{Actor: "test", Why: "test"}
	var discarded atomic.Int64
	for n := range 3 {
		rng := rand.New(rand.NewPCG(3, uint64(n)))
		settling.Go(func() {
			testkit.Eventually(t, 2*time.Minute, "all are settled", func() bool {
				over := false
				select {
				case <-stored:
					over = true
				default:
				}
				hold := selection
				hold.Order, hold.Limit = parked.BlockWhileQuarantined, keys
				claimed, err := s.Claim(ctx, hold)
				rng.Shuffle(len(claimed), func(i, j int) { claimed[i], claimed[j] = claimed[j], claimed[i] })
				var claims []*parked.Claim
				for _, c := range claimed {
					if rng.IntN(8) > 0 {
						claims = append(claims, c.Claim)
						continue
					}
					err = errors.Join(err, s.QuarantineClaim(ctx, "c", c.Claim, parked.Failure{Err: errHandler}))
				}
				if len(claims) > 0 {
					err = errors.Join(err, s.Resolve(ctx, claims...))
				}
				gone, _, failed := s.DiscardSome(ctx, act, parked.Filter{}, math.MaxInt64, 10)
				discarded.Add(int64(gone))
				if err = errors.Join(err, failed); err != nil {
					t.Error(err)
					return true
				}
				return over && len(claimed) == 0 && gone == 0
			})
		})
	}
	settling.Wait()
	<-stored
	keysAreWhole(t, db)
	if discarded.Load() == 0 {
		t.Error("none was discarded")
	}
	left, err := s.List(t.Context(), parked.Filter{Limit: 100}, parked.Waiting, parked.Held, parked.Quarantined)
	if err != nil || len(left) > 0 {
		t.Errorf("%d are left, %v", len(left), err)
	}
}
