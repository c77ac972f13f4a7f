package retry_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/retry"
)

// PostgreSQL accepts statements of at most 1 GB. A hundred messages of the maximum size
// are larger, so they must be stored by several statements. A single statement would fail
// again and again, and later messages would never be handled.
func TestKeyOrderStoresLargeMessagesInSeveralStatements(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	b := newBench(t, db, func(c *retry.Config) { c.KeyOrder = retry.BlockWhileRetried })
	sub := b.retries.Subscriber(consumer, b.transport)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(t.Context(), `LOCK TABLE once_parked IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	messages, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	const count, size = 12, 2 << 20
	var sent []*message.Message
	for n := range count { // the other messages arrive while the first one is stored
		msg := message.NewMessage(fmt.Sprint(n), make([]byte, size))
		msg.Metadata[meta.OrderingKey] = fmt.Sprint(n)
		sent = append(sent, msg)
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		for _, msg := range sent {
			b.transport.messages <- msg
		}
	}()
	b.polls(50) // long enough for all messages to arrive
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	b.eventually("all are stored", func() bool { return b.count("once_parked") == count })
	if n := b.count(`(SELECT FROM once_parked GROUP BY created_at HAVING SUM(length(envelope)) > 12 * 1024 * 1024) AS large`); n != 0 {
		t.Error("more than 12 MiB were stored with one statement")
	}
	for range count {
		(<-messages).Ack()
	}
	<-fed
	for _, msg := range sent {
		<-msg.Acked()
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
}
