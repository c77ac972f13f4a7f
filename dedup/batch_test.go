package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
)

// inBatches returns a bench with a very long Batch.Wait, so that a batch starts only
// when it is full.
func inBatches(t *testing.T, db kit.Database, size int, change func(*dedup.Config)) *bench {
	t.Helper()
	return newBench(t, db, func(c *dedup.Config) {
		c.Batch = dedup.Batch{Size: size, Wait: time.Hour}
		if change != nil {
			change(c)
		}
	})
}

// deliver delivers all messages at the same time and returns the error of each.
func deliver(h message.HandlerFunc, msgs ...*message.Message) []error {
	errs := make([]error, len(msgs))
	var inFlight sync.WaitGroup
	for n, msg := range msgs {
		inFlight.Go(func() { _, errs[n] = h(msg) })
	}
	inFlight.Wait()
	return errs
}

func numbered(count int) []*message.Message {
	msgs := make([]*message.Message, count)
	for n := range msgs {
		msgs[n] = message.NewMessage(fmt.Sprintf("m%02d", n), []byte("body"))
	}
	return msgs
}

// calls records which messages a handler got in which transaction.
type calls struct {
	mu  sync.Mutex
	txs map[*sql.Tx]int
	ids map[string]int
}

func (c *calls) note(tx *sql.Tx, msg *message.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.txs == nil {
		c.txs, c.ids = map[*sql.Tx]int{}, map[string]int{}
	}
	c.txs[tx]++
	c.ids[msg.UUID]++
}

// fails is a function that returns the error with which the handler fails for a
// message, or nil.
type fails func(tx *sql.Tx, msg *message.Message) error

// ways contains a handler of each kind: BatchMiddleware and BatchHandler. For each
// message the handlers call the given fails function, write a row and return an event.
var ways = map[string]func(b *bench, c *calls, f fails) message.HandlerFunc{
	"each": func(b *bench, c *calls, f fails) message.HandlerFunc {
		return b.inbox.BatchMiddleware(func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := dedup.TxFromContext(msg.Context())
			c.note(tx, msg)
			if err := f(tx, msg); err != nil {
				return nil, err
			}
			return []*message.Message{event(msg)}, write(msg.Context(), msg)
		})
	},
	"together": func(b *bench, c *calls, f fails) message.HandlerFunc {
		return b.inbox.BatchHandler(func(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error) {
			var events []*message.Message
			for _, msg := range msgs {
				c.note(tx, msg)
				if err := f(tx, msg); err != nil {
					return nil, err
				}
				if err := write(ctx, msg); err != nil {
					return nil, err
				}
				events = append(events, dedup.CausedBy(msg, event(msg)))
			}
			return events, nil
		})
	},
}

func event(msg *message.Message) *message.Message {
	produced := message.NewMessage(msg.UUID+"-applied", nil)
	outbox.SetTopic(produced, "applied")
	return produced
}

// eachWay runs a test for both kinds of handlers on both databases.
func eachWay(t *testing.T, test func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc)) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			kit.EachDatabase(t, func(t *testing.T, db kit.Database) { test(t, db, way) })
		})
	}
}

func none(*sql.Tx, *message.Message) error { return nil }

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		t.Fatalf("message %d of %d: %v", i, len(errs), errs[i])
	}
}

// Messages in flight must share a transaction. Each must be applied once, and messages
// that were handled before must be skipped.
func TestBatchIsOneTransaction(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		b, c := inBatches(t, db, 20, nil), &calls{}
		h := way(b, c, none)
		msgs := numbered(20)
		msgs[7].Metadata.Set("once_tenant_id", "acme")
		noErrors(t, deliver(h, msgs...))
		b.expect(20, 20, 20)
		if len(c.txs) != 1 {
			t.Errorf("%d transactions", len(c.txs))
		}
		const caused = `once_outbox WHERE message_id = 'm07-applied'
			AND CAST(metadata AS text) LIKE '%"m07"%' AND CAST(metadata AS text) LIKE '%acme%'`
		if b.Count(caused) != 1 {
			t.Error("an event has no causation id")
		}
		if n := b.Count(`once_inbox WHERE tenant = 'acme'`); n != 1 {
			t.Errorf("the inbox has the tenant of %d messages", n)
		}
		noErrors(t, deliver(h, numbered(20)...))
		b.expect(20, 20, 20)
		if len(c.ids) != 20 || len(c.txs) != 1 {
			t.Errorf("handled messages are handled again: %v", c.ids)
		}
	})
}

// A batch contains two deliveries of the same message, a message that was handled
// before, another message with a used id, and a message without an id. Each must get
// the right result.
func TestDuplicatesInABatch(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		b, c := inBatches(t, db, 6, nil), &calls{}
		_, err := b.inbox.Middleware(apply)(message.NewMessage("done", nil))
		kit.OK(t, err)
		h := way(b, c, none)
		errs := deliver(h,
			message.NewMessage("new", nil), message.NewMessage("new", nil), message.NewMessage("other", nil),
			message.NewMessage("done", nil), message.NewMessage("done", []byte("another")),
			message.NewMessage("new", []byte("another")), message.NewMessage("", nil))
		noErrors(t, slices.Concat(errs[2:4]))
		kindOf(t, errs[4], chain.Permanent)
		kindOf(t, errs[6], chain.Permanent)
		// The three messages run in any order. So either the two duplicates count as
		// one message, or both are collisions.
		collisions := 0
		for _, err := range []error{errs[0], errs[1], errs[5]} {
			if err != nil {
				kindOf(t, err, chain.Permanent)
				collisions++
			}
		}
		if want := 1; collisions != want && collisions != 2 {
			t.Errorf("%d collisions in the batch", collisions)
		}
		b.expect(3, 3, 2)
		if c.ids["new"] != 1 || c.ids["done"] != 0 {
			t.Errorf("calls: %v", c.ids)
		}
	})
}

// A message that was handled before does not split its batch.
func TestHandledMessageLeavesOneTransaction(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		b, c := inBatches(t, db, 5, nil), &calls{}
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("m00", []byte("body")))))
		noErrors(t, deliver(way(b, c, none), numbered(5)...))
		b.expect(5, 5, 4)
		if len(c.txs) != 1 {
			t.Errorf("%d transactions, want 1", len(c.txs))
		}
	})
}

// A message with a new id and a key that was handled is a duplicate. The inbox must not
// remember its id, as for a single message.
func TestHandledKeyInABatch(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b, c := inBatches(t, db, 3, func(config *dedup.Config) {
			config.Key = func(msg *message.Message) string { return msg.Metadata.Get("key") }
		}), &calls{}
		keyed := func(id, key, body string) *message.Message {
			msg := message.NewMessage(id, []byte(body))
			msg.Metadata.Set("key", key)
			return msg
		}
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(keyed("m1", "k1", "body"))))
		errs := deliver(ways["each"](b, c, none), keyed("m2", "k1", "body"), keyed("m3", "k1", "another"), keyed("m4", "k4", "body"))
		noErrors(t, []error{errs[0], errs[2]})
		kindOf(t, errs[1], chain.Permanent)
		b.expect(2, 4, 1)
		if len(c.ids) != 1 {
			t.Errorf("calls: %v", c.ids)
		}
	})
}

// The context of a batch must not have the deadline of one of its messages. But it ends
// when the context of any message ends.
func TestABatchHasNoDeadlineOfOneMessage(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := inBatches(t, db, 2, nil)
		msgs := numbered(2)
		for n, msg := range msgs { // the shorter deadline must not matter, whichever message comes first
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n+1)*time.Hour)
			defer cancel()
			msg.SetContext(ctx)
		}
		noErrors(t, deliver(b.inbox.BatchHandler(
			func(ctx context.Context, _ *sql.Tx, msgs []*message.Message) ([]*message.Message, error) {
				if deadline, ok := ctx.Deadline(); ok || len(msgs) != 2 {
					t.Errorf("%d messages have the deadline %v", len(msgs), deadline)
				}
				return nil, nil
			}), msgs...))
		b.expect(0, 2, 0)
	})
}

// Messages of idempotent consumers must share transactions too.
func TestIdempotentConsumerSharesTransactions(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b, c := inBatches(t, db, 3, func(config *dedup.Config) { config.Idempotent = []string{consumer} }), &calls{}
		noErrors(t, deliver(ways["each"](b, c, none), numbered(3)...))
		b.expect(3, 0, 3)
		if len(c.txs) != 1 {
			t.Errorf("%d transactions", len(c.txs))
		}
	})
}

func TestInvalidBatchConfigIsRefused(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	_, err := dedup.New(db.DB, dedup.Config{Batch: dedup.Batch{Size: 1001, Wait: -1, Concurrency: -1}})
	for _, field := range []string{"Batch.Size", "Batch.Wait", "Batch.Concurrency"} {
		if err == nil || !containsText(err, field) {
			t.Errorf("%s is not refused: %v", field, err)
		}
	}
}

// A batch waits for a duplicate of one of its messages for at most a second, so that the
// other messages continue soon. A message in its own transaction waits for LockTimeout.
// The statements of a handler use the lock_timeout of their connection.
func TestBatchWaitsAtMostASecondForADuplicate(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[time.Duration]string{
		10 * time.Second:       "10s, handler: 0, 1s, 1s, handler: 0, handler: 0",
		500 * time.Millisecond: "500ms, handler: 0, 500ms, 500ms, handler: 0, handler: 0",
	} {
		b := inBatches(t, kit.Postgres(t), 2, func(c *dedup.Config) { c.LockTimeout = timeout })
		b.Exec(`CREATE TABLE timeouts (n bigint GENERATED ALWAYS AS IDENTITY, value text);
			CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN INSERT INTO timeouts (value) VALUES (current_setting('lock_timeout')); RETURN NEW; END $$;
			CREATE TRIGGER look BEFORE INSERT ON once_inbox FOR EACH ROW EXECUTE FUNCTION look()`)
		h := b.inbox.BatchMiddleware(func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := dedup.TxFromContext(msg.Context())
			_, err := tx.ExecContext(msg.Context(), `INSERT INTO timeouts (value) VALUES ('handler: ' || current_setting('lock_timeout'))`)
			return nil, err
		})
		alone := message.NewMessage("alone", nil)
		alone.SetContext(parkedrows.WithTried(t.Context(), alone, true)) // it failed before
		noErrors(t, deliver(h, alone))
		noErrors(t, deliver(h, numbered(2)...))
		got := kit.One[string](t, b, `SELECT string_agg(value, ', ' ORDER BY n) FROM timeouts`)
		if got != want {
			t.Errorf("LockTimeout %v: lock_timeout is %s, want %s", timeout, got, want)
		}
	}
}

// If the earlier versions of a message are in the same batch, the batch must apply the
// message, in whatever order the messages arrive. A message whose earlier version is
// missing must be postponed by itself, and the other messages of its batch must not be
// postponed.
func TestEarlyMessagesInABatchWaitForTheirVersion(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b, c := inBatches(t, db, 6, nil), &calls{}
		h := ways["each"](b, c, func(tx *sql.Tx, msg *message.Message) error {
			var number, applied int
			if _, err := fmt.Sscanf(msg.UUID, "m%d", &number); err != nil {
				return err
			}
			err := tx.QueryRowContext(context.Background(), `SELECT COUNT(*) FROM effects`).Scan(&applied)
			if err != nil || number == applied {
				return err
			}
			place := chain.Turn{Sequence: "all", Version: int64(number)}
			return chain.NotYet(place, time.Minute, errors.New("not yet"))
		})
		msgs := slices.Delete(numbered(7), 4, 5) // m05 and m06 wait for the deleted message
		slices.Reverse(msgs)
		for n, err := range deliver(h, msgs...) {
			switch id := msgs[n].UUID; id {
			case "m05", "m06":
				if v := chain.Of(err); v.Early == nil || fmt.Sprintf("m%02d", v.Early.Version) != id {
					t.Errorf("%s: %v, early %+v", id, err, v.Early)
				}
			default:
				if err != nil {
					t.Errorf("%s: %v", id, err)
				}
			}
		}
		b.expect(4, 4, 4)
		if len(c.txs) > 2 {
			t.Errorf("%d transactions, want one that finds the early messages and one that commits", len(c.txs))
		}
	})
}
