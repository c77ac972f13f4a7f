package quarantine

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

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/rows"
	"github.com/watermill-once/once/operate"
)

// keysAreWhole checks that each key with held rows has a head. An index prevents a second
// head.
func keysAreWhole(t *testing.T, db kit.Database) {
	t.Helper()
	var orphans int
	err := db.QueryRowContext(t.Context(), `SELECT COUNT(*) FROM once_parked AS h WHERE state = 'held' AND NOT EXISTS (
		SELECT 1 FROM once_parked AS p WHERE p.consumer = h.consumer AND p.topic = h.topic
		AND p.ordering_key = h.ordering_key AND p.state IN ('waiting', 'quarantined'))`).Scan(&orphans)
	if err != nil || orphans > 0 {
		t.Fatalf("%d rows are held by nobody, %v", orphans, err)
	}
}

// Batches of messages are stored. A batch contains copies of earlier messages, whose
// rows may be in any state, and copies of messages in the same batch. Each message must
// be handled once, and the messages of a key must be handled in the order in which they
// were stored.
func TestKeyOrderOfBatchesWithCopies(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for _, order := range []parkedrows.KeyOrder{parkedrows.BlockWhileRetried, parkedrows.BlockWhileQuarantined, parkedrows.BlockWhileRunning} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) { storeAndSettle(t, db, order) })
		})
	}
}

func storeAndSettle(t *testing.T, db kit.Database, order parkedrows.KeyOrder) {
	t.Helper()
	const keys = 3
	s := newTestTable(t, db)
	rng := rand.New(rand.NewPCG(1, uint64(order)))
	var (
		sent   [keys]int
		seen   = map[string]int{}
		last   [keys]int
		hold   = selection
		failed []int64
		act    = operate.Act{Actor: "test", Why: "test"}
	)
	hold.Order, hold.Keep, hold.Limit = order, true, 5
	settle := func(c parkedrows.Claimed) error {
		var key, n int
		kit.OK(t, kit.Err(fmt.Sscanf(c.Message.UUID, "%d.%d", &key, &n)))
		switch again := seen[c.Message.UUID] > 0; {
		case rng.IntN(4) == 0:
			failed = append(failed, c.ID)
			return quarantineClaim(t.Context(), s, c.Claim, parkedrows.Failure{Err: errHandler})
		case rng.IntN(16) == 0:
			seen[c.Message.UUID]++ // counts as handled
			return errors.Join(quarantineClaim(t.Context(), s, c.Claim, parkedrows.Failure{Err: errHandler}),
				s.discard(t.Context(), act, []int64{c.ID}))
		case n < last[key] && c.Key != parkedrows.Key{}:
			t.Errorf("%s came after %d.%d", c.Message.UUID, key, last[key])
		case again:
			t.Errorf("%s came twice", c.Message.UUID)
		}
		last[key] = max(last[key], n)
		seen[c.Message.UUID]++
		return s.parked.Resolve(t.Context(), c.Claim)
	}
	for range kit.Sized(8, 20) {
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
		kit.OK(t, s.parked.DeliverTo(t.Context(), "t", inOrder, msgs...))
		keysAreWhole(t, db)
		for _, c := range claim(t, s, hold) {
			kit.OK(t, settle(c))
		}
		keysAreWhole(t, db)
		if rng.IntN(3) == 0 {
			kit.OK(t, s.replay(t.Context(), act, failed))
			failed = nil
			keysAreWhole(t, db)
		}
	}
	for left := -1; left != 0; keysAreWhole(t, db) {
		kit.OK(t, s.replay(t.Context(), act, failed))
		left, failed = len(failed), nil
		for _, c := range claim(t, s, hold) {
			left++
			kit.OK(t, settle(c))
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

// Transactions that change many keys, each in a different order, do not deadlock.
// SQLite is not tested, because it has only one writer.
func TestKeyOrderTransactionsWithManyKeysDoNotDeadlock(t *testing.T) {
	t.Parallel()
	const keys, size = 20, 25
	batches := kit.Sized(10, 30)
	db := kit.Postgres(t)
	s := newTestTable(t, db)
	ctx := context.WithoutCancel(t.Context())
	var storing, settling sync.WaitGroup
	for n := range 3 {
		rng := rand.New(rand.NewPCG(2, uint64(n)))
		storing.Go(func() {
			for b := range batches {
				var msgs []*message.Message
				for range size {
					key := rng.IntN(keys) // the other batches contain copies of these messages
					msgs = append(msgs, keyed(fmt.Sprintf("%d.%d.%d", key, b, rng.IntN(3)), fmt.Sprint(key)))
				}
				kit.Check(t, s.parked.DeliverTo(ctx, "t", inOrder, msgs...))
			}
		})
	}
	stored := make(chan struct{})
	go func() { defer close(stored); storing.Wait() }()
	act := operate.Act{Actor: "test", Why: "test"}
	var discarded atomic.Int64
	for n := range 3 {
		rng := rand.New(rand.NewPCG(3, uint64(n)))
		settling.Go(func() {
			kit.Eventually(t, 2*time.Minute, "all are settled", func() bool {
				over := false
				select {
				case <-stored:
					over = true
				default:
				}
				hold := selection
				hold.Order, hold.Limit = parkedrows.BlockWhileQuarantined, keys
				claimed, err := s.parked.Claim(ctx, hold)
				rng.Shuffle(len(claimed), func(i, j int) { claimed[i], claimed[j] = claimed[j], claimed[i] })
				var claims []*parkedrows.Claim
				for _, c := range claimed {
					if rng.IntN(8) > 0 {
						claims = append(claims, c.Claim)
						continue
					}
					err = errors.Join(err, quarantineClaim(ctx, s, c.Claim, parkedrows.Failure{Err: errHandler}))
				}
				if len(claims) > 0 {
					err = errors.Join(err, s.parked.Resolve(ctx, claims...))
				}
				gone, _, failed := s.discardMatching(ctx, act, operate.Filter{}, math.MaxInt64, 10)
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
	if left := rows.Parked(t, s.parked, parkedrows.Waiting, parkedrows.Held, parkedrows.Quarantined); len(left) > 0 {
		t.Errorf("%d are left", len(left))
	}
}

// A resolved message that is replayed with Force has no place in the order of its key,
// because later messages of the key were handled already.
func TestKeyOrderForcedReplayLosesItsKey(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		s := newTestTable(t, db)
		hold := selection
		hold.Order = parkedrows.BlockWhileQuarantined
		kit.OK(t, s.parked.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a"), keyed("a2", "a")))
		first := claim(t, s, hold)[0]
		kit.OK(t, quarantineClaim(t.Context(), s, first.Claim, parkedrows.Failure{Err: errHandler}))
		act := operate.Act{Actor: "test", Why: "test"}
		kit.OK(t, s.replay(t.Context(), act, []int64{first.ID}))
		kit.OK(t, s.parked.Resolve(t.Context(), claim(t, s, hold)[0].Claim))
		filter := operate.Filter{IDs: []int64{first.ID}}
		replay, err := s.replays.Start(t.Context(), act, filter, operate.Plan{Force: true})
		kit.OK(t, err)
		if moved, _, err := s.replays.Advance(t.Context(), replay, 10); err != nil || moved != 1 {
			t.Fatalf("moved %d, %v", moved, err)
		}
		if claimed := claim(t, s, hold); len(claimed) != 2 || claimed[0].Key != (parkedrows.Key{}) || claimed[1].Key == (parkedrows.Key{}) {
			t.Fatalf("claimed %+v", claimed)
		}
	})
}

// A handler that hangs is handling a copy of the message that blocks a key. Discarding
// the message must fail soon, so that later messages of the key can be stored.
func TestKeyOrderDiscardDoesNotBlockTheKey(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	s := newTestTable(t, db)
	kit.OK(t, s.parked.DeliverTo(t.Context(), "t", inOrder, keyed("a1", "a")))
	sel := selection
	sel.Order = parkedrows.BlockWhileQuarantined
	head := claim(t, s, sel)[0].Claim
	d := &parkedrows.Delivery{Consumer: "c", Topic: "t", Claim: head}
	failure := parkedrows.Failure{Err: errHandler, Reason: "failed"}
	kit.OK(t, kit.Err(s.parked.Quarantine(t.Context(), d, keyed("a1", "a"), failure, nil)))
	handler := kit.Begin(t, db)
	defer func() { _ = handler.Rollback() }()
	kit.Exec(t, handler, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('a1', 'c', '')`)
	act := operate.Act{Actor: "ann"}
	discarded, stored := make(chan error, 1), make(chan error, 1)
	go func() { discarded <- s.discard(t.Context(), act, []int64{head.ID}) }()
	kit.Eventually(t, 20*time.Second, "it waits for the handler", func() bool { return waitingForLocks(t, db) == 1 })
	go func() { stored <- s.parked.DeliverTo(t.Context(), "t", inOrder, keyed("a2", "a")) }()
	select {
	case err := <-stored:
		kit.Check(t, err)
	case <-time.After(20 * time.Second):
		t.Error("what comes behind it is not stored")
	}
	kit.OK(t, handler.Rollback())
	if err := <-discarded; !errors.Is(err, operate.ErrClaimed) {
		t.Errorf("got %v, want ErrClaimed", err)
	}
	kit.Check(t, s.discard(t.Context(), act, []int64{head.ID}))
}
