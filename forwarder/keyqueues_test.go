package forwarder_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// If the broker refuses messages of more keys than the forwarder keeps in memory, it
// must still send all of them when the broker accepts them again.
func TestMoreKeysThanAreKeptInMemory(t *testing.T) {
	testkit.Long(t)
	t.Parallel()
	const keys = 23_000
	db := postgres(t)
	msgs := make([]*message.Message, keys)
	for i := range msgs {
		msgs[i] = msg(fmt.Sprint(i), fmt.Sprint("key ", i))
	}
	put(t, db, schema.Config{}, "t", msgs...)
	var healed atomic.Bool
	b := newBroker().answering(func(delivery) error {
		if healed.Load() {
			return nil
		}
		return refusal{errors.New("the queue is full")}
	})
	cfg := quick(schema.Config{})
	cfg.Backoff = func(int) time.Duration { return 10 * time.Second }
	cfg.MaxAttempts = 1000
	start(t, db, &pipelined{broker: b}, cfg)
	testkit.Falls(t, patience, "not refused so far", func() int {
		return count(t, db, `SELECT COUNT(*) FROM once_outbox WHERE attempts = 0`)
	})
	healed.Store(true)
	testkit.Falls(t, patience, "in the outbox", func() int { return pending(t, db) })
}

// If more messages of a key wait than are kept in memory, the forwarder must read the
// next messages as soon as it needs them, and not only at the next poll.
func TestRefillsDoNotWaitForPolls(t *testing.T) {
	t.Parallel()
	db := postgres(t)
	var msgs []*message.Message
	for i := range 600 {
		msgs = append(msgs, msg(fmt.Sprint(i), "key"))
	}
	put(t, db, schema.Config{}, "t", msgs...)
	cfg := quick(schema.Config{})
	cfg.BatchSize, cfg.Window = 20, 20 // so that only five messages of a key are in memory
	cfg.PollMin, cfg.PollMax = patience, patience
	start(t, db, &pipelined{broker: newBroker()}, cfg)
	drained(t, db)
}
