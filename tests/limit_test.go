package tests

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/poison"
)

// newLimited returns a chain whose queues drop a message that returns to its queue for
// the second time.
func newLimited(t *testing.T) *chain {
	t.Helper()
	c := newChain(t, testkit.Postgres(t).DB, testkit.Rabbit(t).URL)
	c.limit = 1
	return c
}

var errFails = errors.New("the handler fails")

// Trap 47. A message may fail more often than the broker's delivery limit allows: a failed message
// does not return to the broker, so the broker drops no message.
func TestRetriesDoNotUseTheDeliveryLimitOfTheBroker(t *testing.T) {
	c := newLimited(t)
	var calls atomic.Int32
	c.handle("payments", placed, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if msg.UUID == "hopeless" || msg.UUID == "fails" && calls.Add(1) < 8 { // the policy has 8 attempts
			return nil, errFails
		}
		return record("payments")(ctx, tx, msg)
	})
	c.start()
	c.publish(message.NewMessage("hopeless", []byte("body")), message.NewMessage("fails", nil), message.NewMessage("fine", nil))
	c.settle(2)
	c.eventually("the hopeless message is in quarantine", func() bool { return c.count(`once_parked`) == 1 })
	page, err := c.consumer.Quarantine().List(t.Context(), poison.Filter{})
	if err != nil || len(page.Entries) != 1 {
		t.Fatalf("%v, %d entries", err, len(page.Entries))
	}
	if e := page.Entries[0]; e.MessageID != "hopeless" || e.Attempts != 8 || string(e.Message.Payload) != "body" {
		t.Errorf("%+v", e)
	}
}

// Trap 73. While the consumer's database is down, a failed message does not
// return to the broker, which would drop it after some deliveries.
func TestOutageOfTheDatabaseUsesNoDeliveries(t *testing.T) {
	c := newLimited(t)
	var calls atomic.Int32
	failed := make(chan struct{})
	c.handle("payments", placed, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if n := calls.Add(1); n <= 2 { // the immediate attempts
			if n == 2 {
				close(failed)
			}
			return nil, errFails
		}
		return record("payments")(ctx, tx, msg)
	})
	c.start()
	c.exec(`ALTER TABLE once_parked RENAME TO elsewhere`) // after the start, because the router checks the tables
	c.publish(message.NewMessage("m1", nil))
	<-failed
	<-time.After(time.Second) // time for the message to return and be dropped
	c.exec(`ALTER TABLE elsewhere RENAME TO once_parked`)
	c.settle(1)
	if n := calls.Load(); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
}
