package sequence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

var hold = sequence.Config{Policy: sequence.HoldForGap, Window: time.Minute}

// A version that is not above the last applied version is acked, and has no effect.
func TestOlderVersionsAreIgnored(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(sequence.Config{}, nil)
		for _, name := range []string{"a2", "a5", "a4", "b1", "a6"} {
			b.publish(name)
			b.settle()
		}
		same := event("a6")
		same.UUID = "a6, again"
		kit.OK(t, b.transport.Publish("accounts", same))
		b.settle()
		b.applied("a", "a2 a5 a6")
		b.applied("b", "b1")
		if left := b.entries(""); len(left) != 0 {
			t.Errorf("left are %+v", left)
		}
	})
}

// If two versions arrive at the same moment, the second version waits until the decision
// about the first one is committed.
func TestConcurrentVersionsAreDecidedOneAfterAnother(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		for name, c := range map[string]struct {
			config        sequence.Config
			before        string // versions that were applied before
			first, second string
			fails         bool // the first attempt of the first version fails
			want          string
		}{
			"a stale one waits":          {sequence.Config{}, "a1", "a3", "a2", false, "a1 a3"},
			"a newer one waits":          {sequence.Config{}, "a1", "a2", "a3", false, "a1 a2 a3"},
			"the other one fails":        {sequence.Config{}, "a1", "a3", "a2", true, "a1 a2"},
			"of a new aggregate":         {sequence.Config{}, "", "a3", "a2", false, "a3"},
			"of a new one, newer":        {sequence.Config{}, "", "a2", "a3", false, "a2 a3"},
			"of a new one, which failed": {sequence.Config{}, "", "a3", "a2", true, "a2"},
			"one that would be early":    {hold, "a1", "a2", "a3", false, "a1 a2 a3"},
		} {
			t.Run(name, func(t *testing.T) {
				database := kit.SQLite
				if db.Dialect == "postgres" {
					database = kit.Postgres
				}
				b := newBench(t, database(t))
				entered, finish := make(chan struct{}), make(chan struct{})
				b.run(c.config, func(msg *message.Message) error {
					if msg.UUID != c.first {
						return nil
					}
					close(entered)
					<-finish
					if c.fails {
						return retry.Permanent(errHandler)
					}
					return nil
				})
				if c.before != "" {
					b.publish(c.before)
					b.settle()
				}
				b.publish(c.first)
				<-entered
				if b.Dialect == "postgres" {
					b.publish(c.second)
					b.Eventually("the second waits", func() bool { return b.blocked() })
				}
				close(finish)
				if b.Dialect != "postgres" { // SQLite has one writer, so the second transaction always waits
					b.publish(c.second)
				}
				b.settle()
				b.applied("a", c.want)
			})
		}
	})
}

// blocked reports whether a transaction waits for a lock.
func (b *bench) blocked() bool {
	b.Helper()
	var n int
	kit.OK(b, b.QueryRowContext(b.Context(), `SELECT COUNT(*) FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%once_versions%'`).Scan(&n))
	return n > 0
}

// A message without a version is not compared. If a version cannot be parsed, this is an
// error. The message is not treated like a message without a version.
func TestAggregateMetadata(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.run(hold, nil)
		for id, change := range map[string]func(m message.Metadata){
			"x-without a version": func(m message.Metadata) { delete(m, meta.AggregateVersion) },
			"x-without a type":    func(m message.Metadata) { delete(m, meta.AggregateType) },
			"x-without an id":     func(m message.Metadata) { delete(m, meta.AggregateID) },
			"y-no number":         func(m message.Metadata) { m[meta.AggregateVersion] = "2.5" },
			"y-negative":          func(m message.Metadata) { m[meta.AggregateVersion] = "-1" },
			"y-before the first":  func(m message.Metadata) { m[meta.AggregateVersion] = "0" },
			"y-long id":           func(m message.Metadata) { m[meta.AggregateID] = strings.Repeat("x", 256) },
			"y-NUL":               func(m message.Metadata) { m[meta.AggregateType] = "a\x00" },
		} {
			msg := event("a9")
			msg.UUID = id
			change(msg.Metadata)
			kit.OK(t, b.transport.Publish("accounts", msg))
		}
		b.settle()
		if got := strings.Count(b.effects("x"), "x-"); got != 3 {
			t.Errorf("%d without metadata were handled, want 3", got)
		}
		entries := b.entries(parkedrows.Quarantined)
		if len(entries) != 5 {
			t.Errorf("%d are quarantined, want 5", len(entries))
		}
		for _, e := range entries {
			if e.Reason != poison.ReasonPermanent || !strings.HasPrefix(e.MessageID, "y-") ||
				!strings.Contains(e.Error, sequence.ErrInvalidVersion.Error()) {
				t.Errorf("entry %+v", e)
			}
		}
	})
}

// If the middleware is not used together with dedup and retry, the error names the
// missing part, and no attempt is counted.
func TestMiddlewareOutsideOfTheChainFailsWithoutACharge(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	b := newBench(t, db)
	config := hold
	config.Schema, config.Tx = b.Config, dedup.TxFromContext
	order, err := sequence.New(config)
	kit.OK(t, err)
	inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.Config, Consumer: "projection"})
	kit.OK(t, err)
	h := order.Middleware(func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler was called")
		return nil, nil
	})
	msg := event("a2")
	for _, c := range []struct {
		h    message.HandlerFunc
		ctx  context.Context
		want error
	}{
		{h, t.Context(), sequence.ErrNoTx},
		{inbox.Middleware(h), t.Context(), sequence.ErrNoConsumer},
		{inbox.Middleware(h), parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: "projection"}), sequence.ErrNoSubscriber},
	} {
		msg.SetContext(c.ctx)
		_, err := c.h(msg)
		if !errors.Is(err, c.want) || chain.Of(err).Kind != chain.Undecided {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
}

// Trap 117. If the database does not write the version of a message, and reports no
// error, the message has no effect and no attempt is counted.
func TestTrap117_NoEffectWithoutTheVersion(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db)
		config := hold
		config.Schema, config.Tx = b.Config, dedup.TxFromContext
		order, err := sequence.New(config)
		kit.OK(t, err)
		inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config, Consumer: "projection"})
		kit.OK(t, err)
		handle := inbox.Middleware(order.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			tx, _ := dedup.TxFromContext(msg.Context())
			return nil, effect(msg.Context(), tx, msg.UUID)
		}))
		for _, c := range []struct{ name, ignored, effects string }{
			{"a1", "INSERT", "a1"},
			{"a2", "UPDATE", "a1 a2"},
		} {
			deliver := func() error {
				msg := event(c.name)
				msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: "projection"}))
				_, err := handle(msg)
				return err
			}
			allow := kit.Ignore(t, db.DB, db.Dialect, c.ignored, "once_versions", "1 = 1")
			if err := deliver(); !errors.Is(err, dialect.ErrUnchanged) || !chain.Of(err).NotCalled {
				t.Errorf("%s, ignored: %v, want ErrUnchanged", c.name, err)
			}
			allow()
			if err := deliver(); err != nil {
				t.Errorf("%s, not ignored: %v", c.name, err)
			}
			b.applied("a", c.effects)
		}
	})
}

// A middleware between dedup and sequence that hides the error of its own statement
// leaves a failed transaction. Each further call would fail in the same way, so this
// must count as a failed attempt.
func TestFailedTransactionOfAnOuterMiddlewareIsCharged(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t))
	config := hold
	config.Schema, config.Tx = b.Config, dedup.TxFromContext
	order, err := sequence.New(config)
	kit.OK(t, err)
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config, Consumer: "projection"})
	kit.OK(t, err)
	inner := order.Middleware(func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler was called")
		return nil, nil
	})
	msg := event("a1")
	msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: "projection"}))
	_, err = inbox.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		tx, _ := dedup.TxFromContext(msg.Context())
		_, _ = tx.ExecContext(msg.Context(), `SELECT 1/0`)
		return inner(msg)
	})(msg)
	if got := chain.Of(err).Kind; err == nil || got != chain.Failed {
		t.Errorf("the disposition of %v is %d, want %d", err, got, chain.Failed)
	}
}

func TestConfigIsValidated(t *testing.T) {
	_, err := sequence.New(sequence.Config{
		Policy: 7, Window: time.Millisecond, AfterWindow: sequence.Apply,
		OnGap: func(context.Context, *sql.Tx, sequence.Gap) (sequence.AfterWindow, error) { return sequence.Apply, nil },
	})
	for _, field := range []string{"Tx", "Policy", "Window", "OnGap"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}
