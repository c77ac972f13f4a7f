package retry_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// UnackedWait must include the duration of the tries, because an unreachable database may
// take a minute to return its error. If the broker waited too long for an ack, it would
// close the channel with all messages in flight.
func TestUnackedWaitIncludesSlowErrors(t *testing.T) {
	t.Parallel()
	const hold = 300 * time.Millisecond
	b := newBench(t, testkit.Postgres(t), func(c *retry.Config) { c.UnackedWait = hold })
	inbox, err := dedup.New(b.DB, dedup.Config{Schema: b.config, LockTimeout: 2 * hold})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := b.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(t.Context(), `INSERT INTO once_inbox (message_id, consumer, digest) VALUES ('m1', $1, '')`, consumer)
	if err != nil {
		t.Fatal(err)
	}
	var tries atomic.Int32
	count := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			tries.Add(1)
			return h(msg)
		}
	}
	b.runWith(func(*message.Message) error {
		t.Error("a copy was handled while the row is claimed")
		return nil
	}, b.retries.Middleware, count, inbox.Middleware)
	if b.transport.deliver(t, message.NewMessage("m1", nil)) {
		t.Error("it was acked")
	}
	if n := tries.Load(); n != 2 {
		t.Errorf("the message waited for %d tries of %v, but UnackedWait is %v", n, 2*hold, hold)
	}
}
