package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestInboxSkipsAMessageThatItHasHandled(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		handle := b.inbox.Middleware(apply)
		for range 3 {
			if _, err := handle(message.NewMessage("m1", []byte("body"))); err != nil {
				t.Fatal(err)
			}
		}
		b.expect(1, 1, 0)

		other, err := dedup.New(db.DB, dedup.Config{Schema: b.config, Consumer: "inventory"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Middleware(apply)(message.NewMessage("m1", []byte("body"))); err != nil {
			t.Fatal(err)
		}
		b.expect(2, 2, 0)
	})
}

// Trap 41. If the transport could not decode a message, no handler may get it, not even
// the handler of an idempotent consumer. The error must make poison quarantine it
// immediately.
func TestUndecodableMessageIsNotHandled(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		for _, idempotent := range [][]string{nil, {consumer}} {
			inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.config, Consumer: consumer, Idempotent: idempotent})
			if err != nil {
				t.Fatal(err)
			}
			why := errors.New("cannot be read")
			msg := message.NewMessage("m1", nil)
			msg.SetContext(disposition.WithUndecodable(t.Context(), why))
			_, err = inbox.Middleware(apply)(msg)
			kindOf(t, err, disposition.Permanent)
			if !errors.Is(err, why) || disposition.Of(err).Reason != disposition.ReasonUndecodable {
				t.Errorf("%v, for the reason %q", err, disposition.Of(err).Reason)
			}
			b.expect(0, 0, 0)
		}
	})
}

// Trap 35. The inbox row and the effect must be in one transaction: a failure must roll
// back both, and the next delivery must be handled.
func TestFailedMessageIsNotRemembered(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		fail := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			if err := write(msg.Context(), msg); err != nil {
				return nil, err
			}
			return nil, errHandler
		})
		_, err := fail(message.NewMessage("m1", nil))
		kindOf(t, err, disposition.Failed)
		if !errors.Is(err, errHandler) {
			t.Fatalf("got %v, want the handler's error", err)
		}
		b.expect(0, 0, 0)
		if _, err := b.inbox.Middleware(apply)(message.NewMessage("m1", nil)); err != nil {
			t.Fatal(err)
		}
		b.expect(1, 1, 0)
	})
}

// Trap 39. Messages whose ids the inbox cannot store must not count as duplicates of
// each other. They must fail permanently, because no retry helps.
func TestUnusableIDIsAPermanentFailure(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		for name, id := range map[string]string{
			"empty": "", "too long": strings.Repeat("x", 256), "NUL": "a\x00b", "invalid UTF-8": "a\xff",
		} {
			_, err := b.inbox.Middleware(apply)(message.NewMessage(id, []byte("body")))
			kindOf(t, err, disposition.Permanent)
			if !errors.Is(err, dedup.ErrInvalidID) || disposition.Of(err).Reason != disposition.ReasonInvalidID {
				t.Errorf("%s: %v is not ErrInvalidID", name, err)
			}
		}
		b.expect(0, 0, 0)
	})
}

// Trap 40. Another message with a used id must not be skipped as a duplicate.
func TestSameIDWithAnotherPayloadIsACollision(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		handle := b.inbox.Middleware(apply)
		if _, err := handle(message.NewMessage("m1", []byte("one"))); err != nil {
			t.Fatal(err)
		}
		_, err := handle(message.NewMessage("m1", []byte("two")))
		kindOf(t, err, disposition.Permanent)
		if !errors.Is(err, dedup.ErrCollision) {
			t.Fatalf("got %v, want ErrCollision", err)
		}
		b.expect(1, 1, 0)
	})
}

// Trap 58. A panic in the handler must not commit its transaction.
func TestPanicOfAHandlerRollsBack(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic did not go on")
				}
			}()
			_, _ = b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				if err := write(msg.Context(), msg); err != nil {
					t.Error(err)
				}
				panic("boom")
			})(message.NewMessage("m1", nil))
		}()
		b.expect(0, 0, 0)
		if n := db.Stats().InUse; n != 0 {
			t.Fatalf("%d connections are left behind", n)
		}
	})
}

// If the handler commits, the next attempt would skip the message as a duplicate, and
// the messages that the handler produced would be lost. So this failure must be
// permanent.
func TestHandlerThatEndsItsTransactionFailsPermanently(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		for id, end := range map[string]func(tx *sql.Tx) error{"m1": (*sql.Tx).Rollback, "m2": (*sql.Tx).Commit} {
			for _, produced := range [][]*message.Message{nil, {toTopic("e1")}} {
				_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					tx, _ := dedup.TxFromContext(msg.Context())
					return produced, end(tx)
				})(message.NewMessage(id+strconv.Itoa(len(produced)), nil))
				kindOf(t, err, disposition.Permanent)
				if !strings.Contains(err.Error(), "neither commit nor roll back") {
					t.Errorf("the error does not name the mistake: %v", err)
				}
			}
		}
		b.expect(0, 2, 0)
	})
}

func toTopic(id string) *message.Message {
	msg := message.NewMessage(id, nil)
	outbox.SetTopic(msg, "t")
	return msg
}

func TestContextOfTheMessageIsRestored(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.SQLite(t), nil)
	msg := message.NewMessage("m1", nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	msg.SetContext(ctx)
	if _, err := b.inbox.Middleware(apply)(msg); err != nil {
		t.Fatal(err)
	}
	if msg.Context() != ctx {
		t.Fatalf("the context is %v, want %v", msg.Context(), ctx)
	}
}

func TestMissingTableIsNamedAndCountsAsNoAttempt(t *testing.T) {
	t.Parallel()
	testkit.EachEmptyDatabase(t, func(t *testing.T, db testkit.Database) {
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}, Consumer: consumer})
		if err != nil {
			t.Fatal(err)
		}
		_, err = inbox.Middleware(apply)(message.NewMessage("m1", nil))
		kindOf(t, err, disposition.Undecided)
		if !strings.Contains(err.Error(), "once_inbox") {
			t.Fatalf("%v does not name the table", err)
		}
	})
}

// Trap 51. A message without a consumer name must not be handled: the inbox would
// remember the messages of all handlers under the same empty name.
func TestMessageWithoutAConsumerNameIsNotHandled(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.SQLite(t), func(c *dedup.Config) { c.Consumer = "" })
	_, err := b.inbox.Middleware(apply)(message.NewMessage("m1", nil))
	if !errors.Is(err, dedup.ErrNoConsumer) {
		t.Fatalf("got %v, want ErrNoConsumer", err)
	}
	b.expect(0, 0, 0)
}

func TestConfigErrorNamesTheField(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	for field, config := range map[string]dedup.Config{
		"Consumer":                   {Consumer: strings.Repeat("x", 256)},
		"LockTimeout":                {LockTimeout: -1},
		"Idempotent":                 {Idempotent: []string{""}},
		"Content is set without Key": {Content: func(*message.Message) []byte { return nil }},
		"MaxDuplicateAge":            {MaxDuplicateAge: -1},
		"Retention":                  {Retention: -1},
		"Retention is 1ns: less":     {Retention: 1, MaxDuplicateAge: 1},
		"SweepInterval":              {SweepInterval: -1},
		"IdleTimeout":                {IdleTimeout: -1},
		"Prefix":                     {Schema: schema.Config{Prefix: "a b"}},
	} {
		if _, err := dedup.New(db.DB, config); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
	if _, err := dedup.New(nil, dedup.Config{}); err == nil || !strings.Contains(err.Error(), "db is nil") {
		t.Errorf("error %v does not say that db is nil", err)
	}
}
