package retry_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

func TestCopyOfParkedMessageUsesSameRow(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
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
	b := newBench(t, testkit.Postgres(t), nil)
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.config})
	if err != nil {
		t.Fatal(err)
	}
	quarantine, err := poison.New(b.DB, poison.Config{Schema: b.config})
	if err != nil {
		t.Fatal(err)
	}
	begun, fail, failed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	after := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if parked.DeliveryOf(msg.Context()).Claim != nil {
				<-failed
			}
			return h(msg)
		}
	}
	var applied atomic.Int32
	b.runWith(func(msg *message.Message) error {
		if parked.DeliveryOf(msg.Context()).Claim == nil {
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
	b.eventually("the row is claimed", func() bool { return b.count(`once_parked WHERE token IS NOT NULL`) == 1 })
	close(fail)
	<-msg.Acked()
	close(failed)
	b.eventually("the row is gone", func() bool { return applied.Load() == 1 && len(b.entries("")) == 0 })
}
