package poison_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// The middleware of poison must be refused inside of dedup. There, it would commit the
// writes of the failed handler together with the entry, and a replay would be skipped
// because the inbox counts the message as handled.
func TestTrap38MiddlewareInsideDedupIsRefused(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.Config})
		kit.OK(t, err)
		for what, dedupe := range map[string]message.HandlerMiddleware{
			"dedup": inbox.Middleware, "dedup in batches": inbox.BatchMiddleware,
		} {
			msg := message.NewMessage("m1", nil)
			msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: "payments", Topic: "orders.placed"}))
			_, err = dedupe(b.store.Middleware(failing(errHandler)))(msg)
			if !errors.Is(err, parkedrows.ErrInsideDedup) || chain.Of(err).Kind != chain.Undecided {
				t.Errorf("inside of %s: %v", what, err)
			}
		}
		if entries := b.list(); len(entries) != 0 {
			t.Errorf("in quarantine: %v", entries)
		}
		kit.Check(t, b.handle("payments", message.NewMessage("m1", nil), inbox.Middleware(failing(errHandler))))
		if entries := b.list(); len(entries) != 1 {
			t.Errorf("in quarantine: %v", entries)
		}
	})
}

// The middleware of poison must be refused inside of retry. There, it would quarantine
// every message that fails, without another attempt.
func TestTrap38MiddlewareInsideRetryIsRefused(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		retries, err := retry.New(db.DB, retry.Config{
			Schema: b.Config, Policy: retry.Policy{Immediate: 1, Delayed: -1}, UnackedWait: time.Nanosecond,
		})
		kit.OK(t, err)
		calls := 0
		h := func(*message.Message) ([]*message.Message, error) {
			calls++
			return nil, errHandler
		}
		deliver := func(h message.HandlerFunc) error {
			msg := message.NewMessage("m1", nil)
			msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: "payments", Topic: "orders.placed"}))
			_, err := h(msg)
			return err
		}
		err = deliver(retries.Middleware(b.store.Middleware(h)))
		if err == nil || !strings.Contains(err.Error(), "inside of retry's") || chain.Of(err).Kind != chain.Undecided || calls != 0 {
			t.Errorf("inside of retry: %v after %d calls", err, calls)
		}
		if entries := b.list(); len(entries) != 0 {
			t.Errorf("in quarantine: %v", entries)
		}
		if err := deliver(b.store.Middleware(retries.Middleware(h))); err != nil || calls != 2 {
			t.Errorf("outside of it: %v after %d calls", err, calls)
		}
		if entries := b.list(); len(entries) != 1 || entries[0].Reason != poison.ReasonExhausted {
			t.Errorf("in quarantine: %v", entries)
		}
	})
}

// A handler may pass the context of its message to another message, which then goes
// through a middleware chain of its own. If this other message fails, it is
// quarantined.
func TestMessageThatARetriedHandlerPassesOnIsQuarantined(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		retries, err := retry.New(db.DB, retry.Config{Schema: b.Config})
		kit.OK(t, err)
		outer := retries.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			inner := message.NewMessage("m2", nil)
			inner.SetContext(msg.Context())
			return b.store.Middleware(failing(errHandler))(inner)
		})
		msg := message.NewMessage("m1", nil)
		msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: "payments", Topic: "orders.placed"}))
		kit.Check(t, kit.Err(outer(msg)))
		if entries := b.list(); len(entries) != 1 || entries[0].MessageID != "m2" {
			t.Errorf("in quarantine: %v", entries)
		}
	})
}
