package retry_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/usercode"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// A message that arrives before an earlier version is parked until its turn, and no
// attempt is counted.
func TestEarlyMessageIsParkedWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			turn := chain.Turn{AggregateType: "order", AggregateID: "7", Sequence: "5:order7", Version: 3}
			return chain.NotYet(turn, time.Hour, errors.New("version 2 is missing"))
		})
		if !b.transport.deliver(t, message.NewMessage("m1", nil)) {
			t.Fatal("not acked")
		}
		rows := b.entries(parkedrows.Waiting)
		if len(rows) != 1 || rows[0].Attempts != 0 || rows[0].Rounds != 0 || time.Until(rows[0].DueAt) < 50*time.Minute || calls.Load() != 1 {
			t.Errorf("%d calls, rows %+v", calls.Load(), rows)
		}
		if n := b.Count(`once_parked WHERE early_of = '5:order7' AND early_version = 3`); n != 1 {
			t.Errorf("%d rows know what they wait for", n)
		}
	})
}

// If three consecutive calls have an unknown outcome, the third one counts as an attempt,
// so that a message that ends its own database session is not tried without end. There
// are pauses between the calls.
func TestThirdCallWithAnUnknownOutcomeIsAnAttempt(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Policy.Immediate, c.Policy.Delayed = 1, -1 })
		var calls atomic.Int32
		b.run(func(*message.Message) error {
			calls.Add(1)
			return chain.HandBack(errHandler)
		})
		b.transport.deliver(t, message.NewMessage("m1", nil))
		rows := b.entries(parkedrows.Quarantined)
		if len(rows) != 1 || rows[0].Attempts != 2 || calls.Load() != 6 || rows[0].Reason != chain.ReasonExhausted ||
			!strings.HasSuffix(rows[0].Error, "the outcome of 3 handler calls is unknown, last error: handler failed") {
			t.Errorf("%d calls, rows %+v", calls.Load(), rows)
		}
	})
}

// A redelivered message that cannot be parked returns to the transport. Its handler must
// not run, because an earlier call of it may have ended the process.
func TestRedeliveredMessageThatCannotBeParkedIsNacked(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.UnackedWait = time.Millisecond })
		b.run(neverCalled(t))
		kit.Exec(t, b, `ALTER TABLE once_parked RENAME TO away`)
		msg := message.NewMessage("m1", nil)
		msg.Metadata["once_redelivered"] = "true"
		if b.transport.deliver(t, msg) {
			t.Error("acked without being stored")
		}
		kit.Exec(t, b, `ALTER TABLE away RENAME TO once_parked`)
	})
}

// A redelivered message that could not be decoded is not parked, even without poison:
// its row would not be marked as undecodable, and the handler would get the raw
// content.
func TestRedeliveredMessageThatCannotBeDecodedIsNotParked(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, b *bench) {
		b.runNamed(consumer, topic, neverCalled(t))
		msg := message.NewMessage("m1", []byte("raw"))
		msg.Metadata["once_redelivered"] = "true"
		msg.SetContext(usercode.WithUndecodable(t.Context(), errHandler))
		if b.transport.deliver(t, msg) {
			t.Error("acked without being in quarantine")
		}
		if all := b.entries(""); len(all) != 0 {
			t.Errorf("the rows are %+v", all)
		}
	})
}

// refusing is a transport whose Subscribe fails.
type refusing struct{ *transport }

var errRefused = errors.New("no such queue")

func (refusing) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, errRefused
}

// After a failed Subscribe, the consumer name is free again. Names that the database
// cannot store are refused before Subscribe uses the transport.
func TestFailedSubscribeLeavesTheNameFree(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), unshared)
	failing := b.retries.Subscriber(consumer, refusing{newTransport()})
	for range 2 {
		if _, err := failing.Subscribe(t.Context(), topic); !errors.Is(err, errRefused) {
			t.Errorf("got %v", err)
		}
	}
	kit.Check(t, failing.Close())
	subscribed(t, b.retries, consumer, topic)

	for want, c := range map[string][2]string{
		"retry: the consumer name of Subscriber: ": {strings.Repeat("x", 256), topic},
		"retry: the topic: ":                       {"other", "a\x00"},
	} {
		sub := b.retries.Subscriber(c[0], newTransport())
		if _, err := sub.Subscribe(t.Context(), c[1]); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		kit.Check(t, sub.Close())
	}
}

// The middleware of retry must be refused inside of dedup. There it would park the
// message and return nil. So dedup would commit the writes of the failed handler, and
// would later skip the retry as a duplicate.
func TestTrap38MiddlewareInsideDedupIsRefused(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.Config})
		kit.OK(t, err)
		calls := 0
		h := func(*message.Message) ([]*message.Message, error) {
			calls++
			return nil, nil
		}
		deliver := func(h message.HandlerFunc) error {
			msg := message.NewMessage("m1", nil)
			msg.SetContext(parkedrows.WithDelivery(t.Context(), &parkedrows.Delivery{Consumer: consumer, Topic: topic, Subscribed: true}))
			_, err := h(msg)
			return err
		}
		err = deliver(inbox.Middleware(b.retries.Middleware(h)))
		if !errors.Is(err, parkedrows.ErrInsideDedup) || chain.Of(err).Kind != chain.Undecided || calls != 0 {
			t.Errorf("inside of dedup: %v after %d calls", err, calls)
		}
		if err := deliver(b.retries.Middleware(inbox.Middleware(h))); err != nil || calls != 1 {
			t.Errorf("outside of dedup: %v after %d calls", err, calls)
		}
	})
}

// A message whose handler has failed is not handled in a batch again, because it would
// probably fail again. So the next try says that the message has failed before.
func TestNextTryKnowsOfTheFailure(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.SQLite(t), nil)
	var failedBefore []bool
	msg := message.NewMessage("m1", nil)
	_, err := b.retries.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		failedBefore = append(failedBefore, parkedrows.FailedBefore(msg.Context()))
		return nil, errHandler
	})(msg)
	if !errors.Is(err, errHandler) || !slices.Equal(failedBefore, []bool{false, true}) {
		t.Errorf("failed before: %v, error %v", failedBefore, err)
	}
}

func TestCopyOfParkedMessageUsesSameRow(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) { c.Policy.Base = time.Hour; c.Policy.Max = time.Hour })
		b.run(func(*message.Message) error { return errHandler })
		for range 3 {
			if !b.transport.deliver(t, message.NewMessage("m1", []byte("body"))) {
				t.Fatal("not acked")
			}
		}
		if entries := b.entries(""); len(entries) != 1 {
			t.Fatalf("%d rows, want 1", len(entries))
		}
	})
}

// If a copy of a message fails permanently while the row of the message is claimed, the
// row must be kept, because the handler may still succeed for the claimed row.
func TestPermanentFailureOfCopyKeepsClaimedRow(t *testing.T) {
	t.Parallel()
	b := newBench(t, kit.Postgres(t), nil)
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.Config})
	kit.OK(t, err)
	quarantine, err := poison.New(b.DB, poison.Config{Schema: b.Config})
	kit.OK(t, err)
	begun, fail, failed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	after := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if parkedrows.DeliveryOf(msg.Context()).Claim != nil {
				<-failed
			}
			return h(msg)
		}
	}
	var applied atomic.Int32
	b.runWith(func(msg *message.Message) error {
		if parkedrows.DeliveryOf(msg.Context()).Claim == nil {
			close(begun)
			<-fail
			return retry.Permanent(errHandler)
		}
		applied.Add(1)
		return nil
	}, quarantine.Middleware, b.retries.Middleware, after, inbox.Middleware)
	msg := message.NewMessage("m1", nil)
	b.transport.messages <- msg
	<-begun
	b.put("m1")
	b.Eventually("the row is claimed", func() bool { return b.Count(`once_parked WHERE token IS NOT NULL`) == 1 })
	close(fail)
	<-msg.Acked()
	close(failed)
	b.Eventually("the row is gone", func() bool { return applied.Load() == 1 && len(b.entries("")) == 0 })
}

// unreliable is a broker whose first publish fails.
type unreliable struct{ calls, published atomic.Int32 }

var errAway = errors.New("the broker is unreachable")

func (u *unreliable) Publish(_ string, msgs ...*message.Message) error {
	if u.calls.Add(1) == 1 {
		return errAway
	}
	u.published.Add(int32(len(msgs)))
	return nil
}

func (u *unreliable) Close() error { return nil }

// Without dedup's outbox, the router publishes the messages that a handler returns,
// after the handler has returned. If this fails, the parked message must be tried
// again, like a message of the transport.
func TestRowStaysUntilProducedMessagesArePublished(t *testing.T) {
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, func(c *retry.Config) {
			c.Policy = retry.Policy{Immediate: -1, Delayed: 2, Base: 10 * time.Millisecond, Factor: 1e6, Jitter: -1} // the second delay is an hour
		})
		b.put("m1")
		router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
		kit.OK(t, err)
		router.AddMiddleware(b.retries.Middleware)
		broker := &unreliable{}
		router.AddHandler("handler-1", topic, b.retries.Subscriber(consumer, b.transport), "payments.made", broker,
			func(*message.Message) ([]*message.Message, error) {
				return []*message.Message{message.NewMessage(watermill.NewUUID(), nil)}, nil
			})
		stopped := kit.Go(func() error { return router.Run(context.WithoutCancel(t.Context())) })
		<-router.Running()
		b.Eventually("the row is gone", func() bool { return len(b.entries("")) == 0 })
		if n := broker.published.Load(); n != 1 {
			t.Errorf("%d produced messages were published, want 1", n)
		}
		kit.OK(t, errors.Join(router.Close(), <-stopped))
	})
}
