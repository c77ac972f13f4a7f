package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/test/kit"
)

func containsText(err error, text string) bool { return strings.Contains(err.Error(), text) }

// If a message in the middle of a batch fails, in whatever way, the other messages must
// be applied, an attempt must be counted only for the failing message, and changes that
// a handler made to a message must be undone.
func TestFailingMessageLeavesItsBatch(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]fails{
		"an error": func(*sql.Tx, *message.Message) error { return errHandler },
		"a panic":  func(*sql.Tx, *message.Message) error { panic(errHandler) },
		"bad SQL": func(tx *sql.Tx, _ *message.Message) error {
			_, err := tx.ExecContext(context.Background(), `no SQL`)
			return errors.Join(err, errHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
				b, c := inBatches(t, db, 20, nil), &calls{}
				h := way(b, c, func(tx *sql.Tx, msg *message.Message) error {
					if string(msg.Payload) != "body" {
						return errors.New("the message is not as it came")
					}
					msg.Payload = []byte("changed")
					if msg.UUID == "m10" {
						return failure(tx, msg)
					}
					return nil
				})
				for n, err := range deliver(h, numbered(20)...) {
					if n == 10 {
						kindOf(t, err, chain.Failed)
					} else if err != nil {
						t.Errorf("message %d: %v", n, err)
					}
				}
				b.expect(19, 19, 19)
				want := 1 + 20 // the batch, and then each message by itself
				if strings.Contains(t.Name(), "/each/") {
					want = 3 // the batch, the failing message, the other messages
				}
				if len(c.txs) != want {
					t.Errorf("%d transactions, want %d", len(c.txs), want)
				}
				for id, n := range c.ids {
					if n > 2 {
						t.Errorf("%s is handled %d times", id, n)
					}
				}
			})
		})
	}
}

// A batch whose transaction is in conflict with another one is handled again, but not
// forever: a message that always causes the conflict leaves the batch.
func TestConflictsOfABatchEnd(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		if db.Dialect == "sqlite" {
			return // it has one writer, so its transactions have no conflicts
		}
		b, c := inBatches(t, db, 5, nil), &calls{}
		h := way(b, c, func(_ *sql.Tx, msg *message.Message) error {
			if msg.UUID == "m03" {
				return &pq.Error{Code: "40001"}
			}
			return nil
		})
		for n, err := range deliver(h, numbered(5)...) {
			if n == 3 {
				kindOf(t, err, chain.Undecided)
			} else if err != nil {
				t.Errorf("message %d: %v", n, err)
			}
		}
		b.expect(4, 4, 4)
		const tries = 4 // for each batch, and for each message by itself
		want := tries + 4 + tries
		if strings.Contains(t.Name(), "/each/") {
			want = tries + 1 + tries // the batch, the other messages, the failing message
		}
		if len(c.txs) != want {
			t.Errorf("%d transactions, want %d", len(c.txs), want)
		}
	})
}

// If a statement fails and its handler does not return the error, the failure appears
// at a later message or at the commit. Still, no attempt may be counted for other
// messages.
func TestHiddenFailureInABatchIsNotCommitted(t *testing.T) {
	t.Parallel()
	b, c := inBatches(t, kit.Postgres(t), 10, nil), &calls{}
	h := b.inbox.BatchMiddleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := dedup.TxFromContext(msg.Context())
		c.note(tx, msg)
		if msg.UUID == "m05" {
			_, _ = tx.ExecContext(msg.Context(), `no SQL`)
			return nil, nil
		}
		return nil, write(msg.Context(), msg)
	})
	errs := deliver(h, numbered(10)...)
	if errs[5] == nil {
		t.Error("the failing message was acked")
	}
	errs[5] = nil
	noErrors(t, errs)
	b.expect(9, 9, 0)
}

// If several messages fail, the remaining messages of the batch must be handled one by
// one, so that the number of calls stays small.
func TestSeveralFailingMessagesInABatch(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		b, c := inBatches(t, db, 20, nil), &calls{}
		bad := map[string]bool{"m03": true, "m04": true, "m11": true, "m19": true}
		errs := deliver(way(b, c, func(_ *sql.Tx, msg *message.Message) error {
			if bad[msg.UUID] {
				return errHandler
			}
			return nil
		}), numbered(20)...)
		for n, msg := range numbered(20) {
			if got := errors.Is(errs[n], errHandler); got != bad[msg.UUID] {
				t.Errorf("%s: %v", msg.UUID, errs[n])
			}
		}
		b.expect(16, 16, 16)
		for id, n := range c.ids {
			if n > 3 {
				t.Errorf("%s is handled %d times", id, n)
			}
		}
	})
}

// If a produced message cannot be stored, only the message whose handler produced it
// must fail.
func TestProducedMessageThatIsRefusedFailsOneMessageOfABatch(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := inBatches(t, db, 5, nil)
		h := b.inbox.BatchMiddleware(func(msg *message.Message) ([]*message.Message, error) {
			produced := event(msg)
			switch msg.UUID {
			case "m01":
				produced.Metadata.Set("once_topic", "")
			case "m02":
				produced.UUID = ""
			case "m03":
				produced = nil
			}
			return []*message.Message{produced}, write(msg.Context(), msg)
		})
		errs := deliver(h, numbered(5)...)
		noErrors(t, []error{errs[0], errs[4]})
		kindOf(t, errs[1], chain.Permanent)
		kindOf(t, errs[2], chain.Permanent)
		kindOf(t, errs[3], chain.Permanent)
		b.expect(2, 2, 2)
	})
}

// If the database refuses the commit, the error does not tell which message is the
// cause. Each message must then run by itself, and an attempt must be counted only for
// the failing one.
func TestRefusedCommitOfABatchFailsOneMessage(t *testing.T) {
	t.Parallel()
	b, c := inBatches(t, kit.Postgres(t), 5, nil), &calls{}
	b.Exec(`CREATE TABLE unique_later (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	errs := deliver(ways["each"](b, c, func(tx *sql.Tx, msg *message.Message) error {
		if msg.UUID != "m02" {
			return nil
		}
		_, err := tx.ExecContext(context.Background(), `INSERT INTO unique_later VALUES (1), (1)`)
		return err
	}), numbered(5)...)
	kindOf(t, errs[2], chain.Failed)
	errs[2] = nil
	noErrors(t, errs)
	b.expect(4, 4, 4)
}

// The connection is lost once, in a handler of the batch or just before the commit. Any
// message may be the cause. All messages must run again, the most likely cause by
// itself, and no attempt may be counted.
func TestLostConnectionCountsAsNoAttemptInABatch(t *testing.T) {
	t.Parallel()
	db := kit.Postgres(t)
	for cut, at := range map[string]int{"in the handler": 1, "before the commit": 5} {
		t.Run(cut, func(t *testing.T) {
			b, c := inBatches(t, db, 5, nil), &calls{}
			lost := false
			h := ways["each"](b, c, func(tx *sql.Tx, msg *message.Message) error {
				if len(c.ids) == at && !lost {
					lost = true
					terminate(t, db.DB, tx)
				}
				return nil
			})
			noErrors(t, deliver(h, numbered(5)...))
			b.expect(5, 5, 5)
			for id, n := range c.ids {
				if n > 2 {
					t.Errorf("%s is handled %d times", id, n)
				}
			}
			b.Exec(`DROP TABLE effects; DELETE FROM once_inbox; DELETE FROM once_outbox`)
		})
	}
}

// If a message loses the connection at each attempt, its outcome is undecided, and the
// other messages of its batch must be applied.
func TestMessageThatLosesItsConnectionLeavesItsBatch(t *testing.T) {
	t.Parallel()
	for _, way := range ways { // SQLite has no connection to lose
		db := kit.Postgres(t)
		b, c := inBatches(t, db, 20, nil), &calls{}
		errs := deliver(way(b, c, func(tx *sql.Tx, msg *message.Message) error {
			if msg.UUID == "m10" {
				terminate(t, db.DB, tx)
			}
			return nil
		}), numbered(20)...)
		kindOf(t, errs[10], chain.Undecided)
		noErrors(t, append(errs[:10], errs[11:]...))
		b.expect(19, 19, 19)
	}
}

// If a handler calls runtime.Goexit, only its message fails. No other message may wait
// for it.
func TestHandlerThatEndsItsGoroutineFailsAlone(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		b, c := inBatches(t, db, 5, nil), &calls{}
		h := way(b, c, func(_ *sql.Tx, msg *message.Message) error {
			if msg.UUID == "m02" {
				runtime.Goexit()
			}
			return nil
		})
		errs := deliver(h, numbered(5)...)
		kindOf(t, errs[2], chain.Failed)
		noErrors(t, append(errs[:2], errs[3:]...))
		b.expect(4, 4, 4)
	})
}

// If the context of a message ends while it waits or is being handled, the other
// messages of its batch must not be cancelled.
func TestCancelledMessageLeavesItsBatch(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db kit.Database, way func(b *bench, c *calls, f fails) message.HandlerFunc) {
		b, c := inBatches(t, db, 2, nil), &calls{}
		ctx, cancel := context.WithCancel(t.Context())
		h := way(b, c, func(_ *sql.Tx, msg *message.Message) error {
			if msg.UUID == "m01" {
				cancel()
			}
			return nil
		})
		gone, cancelGone := context.WithCancel(t.Context())
		waiting := message.NewMessage("waiting", nil)
		waiting.SetContext(gone)
		left := make(chan error, 1)
		go func() {
			_, err := h(waiting)
			left <- err
		}()
		cancelGone()
		kindOf(t, <-left, chain.Undecided)
		msgs := numbered(2)
		msgs[1].SetContext(ctx)
		errs := deliver(h, msgs...)
		noErrors(t, errs[:1])
		if errs[1] != nil { // its batch may have committed before the cancellation was noticed
			kindOf(t, errs[1], chain.Undecided)
		}
		done := 1
		if errs[1] == nil {
			done = 2
		}
		b.expect(done, done, done)
	})
}
