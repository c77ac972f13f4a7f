package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/test/kit"
)

// If two instances run batches with the same messages in opposite order at the same
// time, neither may wait forever for the other, and each message must be applied once.
func TestOverlappingBatchesOfTwoInstancesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		const rounds, size = 10, 30
		one, c := inBatches(t, db, size, nil), &calls{}
		two := one.another(size)
		h, again := way(one, c, none), way(two, c, none)
		for round := range rounds {
			batch := func() (msgs []*message.Message) {
				for n := range size {
					msgs = append(msgs, message.NewMessage(fmt.Sprintf("%d-%02d", round, n), nil))
				}
				return msgs
			}
			backwards := batch()
			slices.Reverse(backwards)
			var both sync.WaitGroup
			for _, copies := range []struct {
				h    message.HandlerFunc
				msgs []*message.Message
			}{{h, batch()}, {again, backwards}} {
				both.Go(func() {
					for n, err := range deliver(copies.h, copies.msgs...) {
						if err != nil && chain.Of(err).Kind != chain.Undecided {
							t.Errorf("message %d: %v", n, err)
						}
					}
				})
			}
			both.Wait()
		}
		one.expect(rounds*size, rounds*size, rounds*size)
	})
}

// A batch must insert its ids in ascending order: if it waits for a duplicate, it has
// inserted only lower ids. So the transaction that handles the duplicate can still
// insert higher ids.
func TestBatchInsertsIDsInOrder(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	b, c := inBatches(t, db, 30, func(c *dedup.Config) { c.LockTimeout = time.Minute }), &calls{}
	tx := kit.Begin(t, db)
	t.Cleanup(func() { _ = tx.Rollback() })
	claim := func(id string) {
		t.Helper()
		kit.Exec(t, tx, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ($1, $2, '')`, id, consumer)
	}
	claim("m00")
	done := make(chan []error, 1)
	go func() { done <- deliver(ways["each"](b, c, none), numbered(30)...) }()
	kit.Eventually(t, 30*time.Second, "the batch waits for the copy", func() bool {
		return b.Count(`pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
	kit.Exec(t, tx, `SET LOCAL lock_timeout = '300ms'`)
	for _, msg := range numbered(30)[1:] {
		claim(msg.UUID)
	}
	kit.OK(t, tx.Rollback())
	noErrors(t, <-done)
	b.expect(30, 30, 30)
}

// another returns a bench with a second inbox for the same database.
func (b *bench) another(size int) *bench {
	b.Helper()
	second := *b
	var err error
	second.inbox, err = dedup.New(b.DB, dedup.Config{
		Schema: b.Config, Consumer: consumer, Outbox: b.box.Publisher, Logger: kit.Logger(b.T),
		Batch: dedup.Batch{Size: size, Wait: time.Hour},
	})
	kit.OK(b, err)
	return &second
}

// If two batches change the same rows in opposite order, the database rolls one of them
// back. This batch must run again, and no attempt may be counted.
func TestDeadlockOfBatchesCountsAsNoAttempt(t *testing.T) {
	t.Parallel()
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			b, c := inBatches(t, kit.Postgres(t), 2, nil), &calls{}
			b.Exec(`CREATE TABLE totals (id text PRIMARY KEY, n integer); INSERT INTO totals VALUES ('x', 0), ('y', 0)`)
			var first sync.WaitGroup // done when both transactions have locked their first row
			first.Add(2)
			var mu sync.Mutex
			began := map[string]int{}
			h := func(b *bench, rows ...string) message.HandlerFunc {
				return way(b, c, func(tx *sql.Tx, msg *message.Message) error {
					mu.Lock()
					began[rows[0]]++
					n := began[rows[0]] - 1
					mu.Unlock()
					_, err := tx.ExecContext(context.Background(), `UPDATE totals SET n = n + 1 WHERE id = $1`, rows[n%2])
					if n == 0 {
						first.Done()
						first.Wait()
					}
					return err
				})
			}
			one, two := h(b, "x", "y"), h(b.another(2), "y", "x")
			var both sync.WaitGroup
			both.Go(func() { noMoreErrors(t, deliver(one, message.NewMessage("a", nil), message.NewMessage("b", nil))) })
			both.Go(func() { noMoreErrors(t, deliver(two, message.NewMessage("c", nil), message.NewMessage("d", nil))) })
			both.Wait()
			b.expect(4, 4, 4)
			if len(c.txs) < 3 {
				t.Errorf("%d transactions, want one that is rolled back and two others", len(c.txs))
			}
			for _, n := range c.txs {
				if n != 2 {
					t.Error("the batch is taken apart")
				}
			}
		})
	}
}

func noMoreErrors(t *testing.T, errs []error) {
	t.Helper()
	for n, err := range errs {
		if err != nil {
			t.Errorf("message %d: %v", n, err)
		}
	}
}

// If another process handles a duplicate in a transaction that does not end, only the
// duplicate may be delayed, not the rest of the batch.
func TestFrozenDuplicateDoesNotBlockItsBatch(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	b, c := inBatches(t, db, 5, func(c *dedup.Config) { c.LockTimeout = 50 * time.Millisecond }), &calls{}
	tx, err := db.BeginTx(t.Context(), nil)
	kit.OK(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	kit.Exec(t, tx, `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m02', $1, '')`, consumer)
	errs := deliver(ways["each"](b, c, none), numbered(5)...)
	kindOf(t, errs[2], chain.Undecided)
	errs[2] = nil
	noErrors(t, errs)
	b.expect(4, 4, 4)
}

// A batch waits until it has the number of messages that the previous batch had. So a
// consumer with few messages in flight must not wait until its batch is full, and a
// consumer with one message in flight must soon not wait at all.
func TestBatchDoesNotWaitUntilFull(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		const wait = time.Second
		b, c := newBench(t, db, func(c *dedup.Config) { c.Batch.Wait = wait }), &calls{}
		h := way(b, c, none)
		began := time.Now()
		const lone = 30
		for _, msg := range numbered(lone) {
			noErrors(t, deliver(h, msg))
		}
		if took := time.Since(began); took > lone/2*wait {
			t.Errorf("each of %d messages waited for others: %v", lone, took)
		}
		b.expect(lone, lone, lone)
	})
}

// If there are more messages than Batch.Size, they must run in several batches, one
// after another.
func TestMessagesBeyondTheBatchSizeFormMoreBatches(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		b, c := newBench(t, db, func(c *dedup.Config) { c.Batch.Size = 10 }), &calls{}
		var running atomic.Int32
		noErrors(t, deliver(way(b, c, func(tx *sql.Tx, _ *message.Message) error {
			defer running.Add(-1)
			if running.Add(1) > 1 {
				return errors.New("two handlers at once")
			}
			_, err := tx.ExecContext(context.Background(), `SELECT 1`)
			return err
		}), numbered(95)...))
		b.expect(95, 95, 95)
		for _, n := range c.txs {
			if n > 10 {
				t.Errorf("%d messages in one transaction", n)
			}
		}
	})
}

// The number of batches that run at the same time must be Batch.Concurrency.
func TestBatchesRunConcurrently(t *testing.T) {
	t.Parallel()
	b, c := inBatches(t, kit.Postgres(t), 10, func(c *dedup.Config) { c.Batch.Concurrency = 3 }), &calls{}
	var all sync.WaitGroup // done when the first messages of three batches are being handled
	all.Add(3)
	noErrors(t, deliver(ways["each"](b, c, func(tx *sql.Tx, _ *message.Message) error {
		c.mu.Lock()
		first := c.txs[tx] == 1
		c.mu.Unlock()
		if first {
			all.Done()
			all.Wait()
		}
		return nil
	}), numbered(30)...))
	b.expect(30, 30, 30)
}
