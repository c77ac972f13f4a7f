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

// TestMoreKeysThanAreKeptInMemory has a broker refuse the heads of more keys
// than the forwarder keeps in memory: it goes on when there are fewer again.
func TestMoreKeysThanAreKeptInMemory(t *testing.T) {
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

// TestRefillsDoNotWaitForPolls has more messages of one key than are kept in
// memory, and long pauses between two reads of the outbox.
func TestRefillsDoNotWaitForPolls(t *testing.T) {
	db := postgres(t)
	var msgs []*message.Message
	for i := range 600 {
		msgs = append(msgs, msg(fmt.Sprint(i), "key"))
	}
	put(t, db, schema.Config{}, "t", msgs...)
	cfg := quick(schema.Config{})
	cfg.BatchSize, cfg.Window = 20, 20 // so that five of a key are
	cfg.PollMin, cfg.PollMax = patience, patience
	start(t, db, &pipelined{broker: newBroker()}, cfg)
	drained(t, db)
}
