package dedup_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

func TestInboxSkipsAMessageThatItHasHandled(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		handle := b.inbox.Middleware(apply)
		for range 3 {
			kit.OK(t, kit.Err(handle(message.NewMessage("m1", []byte("body")))))
		}
		b.expect(1, 1, 0)

		other, err := dedup.New(db.DB, dedup.Config{Schema: b.Config, Consumer: "inventory"})
		kit.OK(t, err)
		kit.OK(t, kit.Err(other.Middleware(apply)(message.NewMessage("m1", []byte("body")))))
		b.expect(2, 2, 0)
	})
}

// Trap 41. If the transport could not decode a message, no handler may get it, not even
// the handler of an idempotent consumer. The error must make poison quarantine it
// immediately.
func TestUndecodableMessageIsNotHandled(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		for _, idempotent := range [][]string{nil, {consumer}} {
			inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.Config, Consumer: consumer, Idempotent: idempotent})
			kit.OK(t, err)
			why := errors.New("cannot be read")
			msg := message.NewMessage("m1", nil)
			msg.SetContext(usercode.WithUndecodable(t.Context(), why))
			_, err = inbox.Middleware(apply)(msg)
			kindOf(t, err, chain.Permanent)
			if !errors.Is(err, why) || chain.Of(err).Reason != chain.ReasonUndecodable {
				t.Errorf("%v, for the reason %q", err, chain.Of(err).Reason)
			}
			b.expect(0, 0, 0)
		}
	})
}

// Trap 35. The inbox row and the effect must be in one transaction: a failure must roll
// back both, and the next delivery must be handled.
func TestFailedMessageIsNotRemembered(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		fail := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			if err := write(msg.Context(), msg); err != nil {
				return nil, err
			}
			return nil, errHandler
		})
		_, err := fail(message.NewMessage("m1", nil))
		kindOf(t, err, chain.Failed)
		if !errors.Is(err, errHandler) {
			t.Fatalf("got %v, want the handler's error", err)
		}
		b.expect(0, 0, 0)
		kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage("m1", nil))))
		b.expect(1, 1, 0)
	})
}

// Trap 39. Messages whose ids the inbox cannot store must not count as duplicates of
// each other. They must fail permanently, because no retry helps.
func TestUnusableIDIsAPermanentFailure(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		for name, id := range map[string]string{
			"empty": "", "too long": strings.Repeat("x", 256), "NUL": "a\x00b", "invalid UTF-8": "a\xff",
		} {
			_, err := b.inbox.Middleware(apply)(message.NewMessage(id, []byte("body")))
			kindOf(t, err, chain.Permanent)
			if !errors.Is(err, dedup.ErrInvalidID) || chain.Of(err).Reason != chain.ReasonInvalidID {
				t.Errorf("%s: %v is not ErrInvalidID", name, err)
			}
		}
		b.expect(0, 0, 0)
	})
}

// Trap 40. Another message with a used id must not be skipped as a duplicate.
func TestSameIDWithAnotherPayloadIsACollision(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		handle := b.inbox.Middleware(apply)
		kit.OK(t, kit.Err(handle(message.NewMessage("m1", []byte("one")))))
		_, err := handle(message.NewMessage("m1", []byte("two")))
		kindOf(t, err, chain.Permanent)
		if !errors.Is(err, dedup.ErrCollision) {
			t.Fatalf("got %v, want ErrCollision", err)
		}
		b.expect(1, 1, 0)
	})
}

// Trap 58. A handler that panics or ends its goroutine must not commit its transaction.
func TestPanicOfAHandlerRollsBack(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		for want, end := range map[string]func(){"panic: boom": func() { panic("boom") }, usercode.ErrExited.Error(): runtime.Goexit} {
			_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				kit.Check(t, write(msg.Context(), msg))
				end()
				return nil, nil
			})(message.NewMessage("m1", nil))
			if err == nil || err.Error() != want {
				t.Errorf("the error is %v, want %s", err, want)
			}
			if hasStack := usercode.Stack(err) != ""; hasStack != (want == "panic: boom") {
				t.Errorf("%s: the error has a stack: %t", want, hasStack)
			}
			b.expect(0, 0, 0)
			if n := db.Stats().InUse; n != 0 {
				t.Fatalf("%s: %d connections are left behind", want, n)
			}
		}
	})
}

// If the handler commits, the next attempt would skip the message as a duplicate, and
// the messages that the handler produced would be lost. So this failure must be
// permanent.
func TestHandlerThatEndsItsTransactionFailsPermanently(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		for id, end := range map[string]func(tx *sql.Tx) error{"m1": (*sql.Tx).Rollback, "m2": (*sql.Tx).Commit} {
			for _, produced := range [][]*message.Message{nil, {toTopic("e1")}} {
				_, err := b.inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
					tx, _ := dedup.TxFromContext(msg.Context())
					return produced, end(tx)
				})(message.NewMessage(id+strconv.Itoa(len(produced)), nil))
				kindOf(t, err, chain.Permanent)
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
	b := newBench(t, kit.SQLite(t), nil)
	msg := message.NewMessage("m1", nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	msg.SetContext(ctx)
	kit.OK(t, kit.Err(b.inbox.Middleware(apply)(msg)))
	if msg.Context() != ctx {
		t.Fatalf("the context is %v, want %v", msg.Context(), ctx)
	}
}

func TestMissingTableIsNamedAndCountsAsNoAttempt(t *testing.T) {
	t.Parallel()
	kit.EachEmptyDatabase(t, func(t *testing.T, db kit.Database) {
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: schema.Config{Dialect: schema.Dialect(db.Dialect)}, Consumer: consumer})
		kit.OK(t, err)
		_, err = inbox.Middleware(apply)(message.NewMessage("m1", nil))
		kindOf(t, err, chain.Undecided)
		if !strings.Contains(err.Error(), "once_inbox") {
			t.Fatalf("%v does not name the table", err)
		}
	})
}

// Trap 51. A message without a consumer name must not be handled: the inbox would
// remember the messages of all handlers under the same empty name.
func TestMessageWithoutAConsumerNameIsNotHandled(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), func(c *dedup.Config) { c.Consumer = "" })
	_, err := b.inbox.Middleware(apply)(message.NewMessage("m1", nil))
	if !errors.Is(err, dedup.ErrNoConsumer) {
		t.Fatalf("got %v, want ErrNoConsumer", err)
	}
	b.expect(0, 0, 0)
}

func TestConfigErrorNamesTheField(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
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

// The estimate of a small table is its number of rows, once the database has analyzed it.
func TestSizeOfTheInbox(t *testing.T) {
	eachLayout(t, func(t *testing.T, db kit.Database, tables schema.Config) {
		b := newBenchIn(t, db, tables, nil)
		size := func() (live, dead, bytes int64) {
			live, dead, bytes, err := b.inbox.Size(t.Context())
			kit.OK(t, err)
			return live, dead, bytes
		}
		if live, _, _ := size(); live != 0 {
			t.Errorf("%d rows in an empty inbox", live)
		}
		for _, id := range []string{"1", "2", "3"} {
			b.Exec(`INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('` + id + `', 'payments', '')`)
		}
		kit.Eventually(t, time.Minute, "there are 3 rows", func() bool { // the statistics may count the rows twice for a time
			b.Exec(`ANALYZE`)
			live, _, _ := size()
			return live == 3
		})
		_, dead, bytes := size()
		if known := dead >= 0 && bytes > 0; known != (db.Dialect != "sqlite") {
			t.Errorf("%d dead rows, %d bytes", dead, bytes)
		}
	})
}

// By default, database/sql keeps two idle connections and closes all others. If this
// costs much time, it must be logged, because nothing else shows it.
func TestPoolThatKeepsTooFewConnectionsIsLogged(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	for _, c := range []struct {
		name string
		keep int
		said int
	}{
		{"as sql.Open makes it", 2, 1},
		{"as many as are used", 10, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			logs := &kit.Logs{}
			b := newBench(t, kit.SQLite(t), func(config *dedup.Config) { config.Logger = logs })
			b.SetMaxIdleConns(c.keep)
			handled := 0
			handle := func(messages int) {
				for range messages {
					handled++
					kit.OK(t, kit.Err(b.inbox.Middleware(apply)(message.NewMessage(fmt.Sprint("m", handled), nil))))
				}
			}
			handle(1)
			for range 2 { // the check needs two samples
				for range 20 {
					b.takeAtOnce(10)
				}
				handle(500)
			}
			const line = "INFO The connection pool closes connections as soon as they are free, and most time is spent connecting: " +
				"call SetMaxIdleConns with the number of handlers that run at the same time idle=2 max_open=0"
			if logs.CountLine(line) != c.said || logs.Count("SetMaxIdleConns") != c.said {
				t.Errorf("want %d times %q, logged %q", c.said, line, logs.Lines())
			}
		})
	}
}

// takeAtOnce takes n connections and then returns all of them.
func (b *bench) takeAtOnce(n int) {
	b.Helper()
	conns := make([]*sql.Conn, n)
	for i := range conns {
		var err error
		conns[i], err = b.Conn(b.Context())
		kit.OK(b, err)
	}
	for _, conn := range conns {
		kit.OK(b, conn.Close())
	}
}

// Trap 117. If the database does not insert the row of a message, and reports no error,
// the message has no effect. The other messages of its batch are handled.
func TestTrap117_NoEffectWithoutAnInboxRow(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := inBatches(t, db, 3, nil)
		h := func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := dedup.TxFromContext(msg.Context())
			_, err := tx.ExecContext(msg.Context(), `INSERT INTO effects (message_id) VALUES ('`+msg.UUID+`')`)
			return nil, err
		}
		for _, middleware := range []message.HandlerMiddleware{b.inbox.Middleware, b.inbox.BatchMiddleware} {
			b.Exec(`DELETE FROM effects`)
			b.Exec(`DELETE FROM once_inbox`)
			msgs := numbered(3)
			allow := kit.Ignore(t, db.DB, db.Dialect, "INSERT", "once_inbox", "NEW.message_id = '"+msgs[1].UUID+"'")
			for i, err := range deliver(middleware(h), msgs...) {
				if i != 1 && err == nil {
					continue
				}
				if i != 1 || !errors.Is(err, dialect.ErrUnchanged) || !chain.Of(err).NotCalled {
					t.Errorf("message %d: %v", i, err)
				}
			}
			b.expect(2, 2, 0)
			allow()
			noErrors(t, deliver(middleware(h), msgs...))
			b.expect(3, 3, 0)
		}
	})
}
