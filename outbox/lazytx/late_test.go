package lazytx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/outbox/lazytx"
	"github.com/watermill-once/once/schema"
)

func otherOutbox(t *testing.T, config outbox.Config) *outbox.Outbox {
	t.Helper()
	o, err := outbox.New(config)
	kit.OK(t, err)
	return o
}

// The events of a transaction are sent in one message with COMMIT. One statement
// contains all events of one outbox. A transaction with events needs no more messages
// than a transaction without events.
func TestEventsAreSentWithCommit(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, w *world) {
		other := otherOutbox(t, outbox.Config{Schema: schema.Config{Prefix: "other_"}})
		place := func(id string, events int) []string {
			return w.wire.sent(func() {
				kit.OK(t, w.inTx(func(tx *sql.Tx, publisher message.Publisher) error {
					if _, err := tx.ExecContext(t.Context(), `INSERT INTO orders VALUES ($1)`, id); err != nil {
						return err
					}
					for n := range events {
						if err := publisher.Publish(fmt.Sprint("topic-", n), event(fmt.Sprint(id, n))); err != nil {
							return err
						}
					}
					if events == 0 {
						return nil
					}
					return other.Publisher(tx).Publish("t", event("other"))
				}))
			})
		}
		place("first", 0) // pgx prepares the statement
		without, with := place("without", 0), place("with", 3)
		if len(without) != len(with) {
			t.Errorf("%d messages without events: %q\n%d with them: %q", len(without), without, len(with), with)
		}
		last := with[len(with)-1]
		if strings.Count(last, "INSERT INTO") != 2 || strings.Count(last, `"once_outbox"`) != 1 || !strings.Contains(last, "; COMMIT") {
			t.Errorf("the last message is %q", last)
		}
		w.expect("first with without", "with0 with1 with2")
		if got := w.text(`SELECT message_id FROM other_outbox`); got != "other" {
			t.Errorf("the other outbox has %q", got)
		}
	})
}

// Events are also sent with COMMIT if the service begins the transaction itself. A
// transaction whose context can end is an exception: lib/pq watches its context, so
// lib/pq must send COMMIT itself.
func TestEventsOfTheServicesOwnTransaction(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, w *world) {
		ending, cancel := context.WithCancel(t.Context())
		defer cancel()
		for n, ctx := range []context.Context{context.Background(), ending, context.Background()} {
			commit := w.wire.sent(func() {
				tx, err := w.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
				kit.OK(t, err)
				kit.OK(t, errors.Join(w.place(tx, outbox.Publisher(tx), fmt.Sprint(n)), tx.Commit()))
			})
			last := commit[len(commit)-1]
			if n != 1 && !strings.Contains(last, "INSERT INTO") {
				t.Errorf("transaction %d: the last message is %q", n, last)
			}
		}
		w.expect("0 1 2", "0 1 2")
	})
}

// A consumer sends the inbox row of a message together with BEGIN, and the handler's
// events together with COMMIT.
func TestConsumerSendsBeginAndCommitWithItsStatements(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, w *world) {
		inbox, err := dedup.New(w.db, dedup.Config{Consumer: "c", Outbox: outbox.Publisher})
		kit.OK(t, err)
		handle := inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := dedup.TxFromContext(msg.Context())
			if err := w.place(tx, outbox.Publisher(tx), msg.UUID); err != nil {
				return nil, err
			}
			produced := event("after-" + msg.UUID)
			outbox.SetTopic(produced, "payments")
			return []*message.Message{produced}, nil
		})
		handled := func(id string) []string {
			return w.wire.sent(func() {
				kit.OK(t, kit.Err(handle(event(id))))
			})
		}
		handled("a") // this call also opens the connection
		messages := handled("b")
		first, last := messages[0], messages[len(messages)-1]
		if !strings.Contains(first, "BEGIN READ WRITE; ") || !strings.Contains(first, "INSERT INTO") {
			t.Errorf("the first message is %q", first)
		}
		if strings.Count(last, "INSERT INTO") != 1 || !strings.Contains(last, "after-b") || !strings.Contains(last, "; COMMIT") {
			t.Errorf("the last message is %q", last)
		}
		kit.Check(t, kit.Err(handle(event("b"))))
		w.expect("a b", "a after-a b after-b")
	})
}

// Trap 04. The connection is lost while the events and COMMIT are sent in one message.
// Either the whole transaction takes effect, or none of it, and InTx returns
// ErrCommitUnknown.
func TestTrap04_ConnectionLostAtCommitWithEvents(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, w *world) {
		want := ""
		for n, at := range []cutAt{beforeThat, afterAnswer, beforeThat, afterAnswer} {
			hinted := false
			id := fmt.Sprint(n)
			err := outbox.InTx(t.Context(), w.db, func(tx *sql.Tx, events message.Publisher) error {
				w.wire.cutNext(at)
				return w.place(tx, events, id)
			}, func() { hinted = true })
			if !errors.Is(err, outbox.ErrCommitUnknown) || !hinted {
				t.Errorf("cut %d: %v, hinted %t", n, err, hinted)
			}
			if at == afterAnswer {
				want = strings.TrimSpace(want + " " + id)
			}
			w.wait(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'`, "0")
			w.expect(want, want)
		}
		kit.Check(t, w.inTx(func(tx *sql.Tx, events message.Publisher) error { return w.place(tx, events, "later") }))
		w.expect(want+" later", want+" later")
	})
}

// If the database refuses a row, the commit fails. Nothing takes effect, and the next
// transaction can use the connection.
func TestRefusedEventFailsTheCommit(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, w *world) {
		w.exec(`ALTER TABLE once_outbox ADD CONSTRAINT no_refunds CHECK (message_id <> 'refund');
			CREATE TABLE items (order_id text REFERENCES orders DEFERRABLE INITIALLY DEFERRED)`)
		for name, c := range map[string]struct {
			work func(tx *sql.Tx, events message.Publisher) error
			want string
		}{
			"check": {func(tx *sql.Tx, events message.Publisher) error { return w.place(tx, events, "refund") }, "no_refunds"},
			"deferred constraint": {func(tx *sql.Tx, events message.Publisher) error {
				_, err := tx.ExecContext(t.Context(), `INSERT INTO items VALUES ('none')`)
				return errors.Join(err, events.Publish("t", event("e")))
			}, "violates foreign key constraint"},
			"read-only": {func(tx *sql.Tx, events message.Publisher) error {
				_, err := tx.ExecContext(t.Context(), `SET TRANSACTION READ ONLY`)
				return errors.Join(err, events.Publish("t", event("e")))
			}, "read-only transaction"},
			"ignored error": {func(tx *sql.Tx, events message.Publisher) error {
				_, _ = tx.ExecContext(t.Context(), `SELECT 1/0`)
				return events.Publish("t", event("e"))
			}, "aborted"},
			"no table": {func(tx *sql.Tx, _ message.Publisher) error {
				return otherOutbox(t, outbox.Config{Schema: schema.Config{Prefix: "missing_"}}).Publisher(tx).Publish("t", event("e"))
			}, `table "missing_outbox" cannot be written: grant the role of a producer`},
		} {
			err := w.inTx(c.work)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, outbox.ErrCommitUnknown) {
				t.Errorf("%s: %v", name, err)
			}
			w.expect("", "")
		}
		kit.Check(t, w.inTx(func(tx *sql.Tx, events message.Publisher) error { return w.place(tx, events, "a") }))
		w.expect("a", "a")
	})
}

// A transaction that was begun as read-only refuses an event immediately, as without
// lazytx.
func TestReadOnlyTransactionRefusesEventAtOnce(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, w *world) {
		tx, err := w.db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
		kit.OK(t, err)
		defer func() { _ = tx.Rollback() }()
		if err := outbox.Publisher(tx).Publish("t", event("e")); dialect.State(err) != "25006" {
			t.Errorf("got %v", err)
		}
	})
}

// A statement that is larger than the limit does not wait for COMMIT.
func TestLargeEventsAreSentAtOnceAndInOrder(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, w *world) {
		kit.OK(t, w.inTx(func(tx *sql.Tx, events message.Publisher) error {
			small := func(id string) error { return events.Publish("t", event(id)) }
			large := func(id string) error {
				return events.Publish("t", message.NewMessage(id, make([]byte, lazytx.MaxLate)))
			}

			return errors.Join(small("a"), large("large"), small("b"), large("largest"), small("c"))
		}))
		w.expect("", "a large b largest c")
	})
}
