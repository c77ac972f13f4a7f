package tests

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/rabbit"
)

// With the default configuration of all parts, enough messages are in flight for full
// batches of 100: while one batch is handled, all messages of the next batch have
// arrived.
func TestBatchesAreFullWithDefaults(t *testing.T) {
	const batch, all = 100, 450
	for mode, config := range map[string]once.ConsumerConfig{
		"direct":  {},
		"durable": {DurableConsumers: []string{"payments"}},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newChain(t, testkit.Postgres(t).DB, testkit.Rabbit(t).URL)
			config.Logger = testkit.Logger(t)
			var err error
			if c.consumer, err = once.NewConsumer(c.db, config); err != nil {
				t.Fatal(err)
			}
			sub, err := rabbit.NewSubscriber(c.config("payments"), rabbit.SubscriberConfig{Logger: testkit.Logger(t)})
			if err != nil {
				t.Fatal(err)
			}
			var (
				arrived atomic.Int32
				first   sync.Once
				enough  = make(chan struct{})
			)
			c.router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					if arrived.Add(1) == 2*batch {
						close(enough)
					}
					return h(msg)
				}
			})
			c.exec(`CREATE TABLE batches (message_id text, batch text)`)
			c.consumer.AddHandlerInBatches(c.router, "payments", placed, sub,
				func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
					first.Do(func() {
						select { // the first batch waits until the next one is complete
						case <-enough:
						case <-time.After(time.Minute):
							t.Errorf("only %d messages are in flight", arrived.Load())
						}
					})
					_, err := tx.ExecContext(ctx, `INSERT INTO batches VALUES ($1, pg_current_xact_id()::text)`, msg.UUID)
					return nil, err
				})
			if err := sub.SubscribeInitialize(placed); err != nil {
				t.Fatal(err)
			}
			msgs := make([]*message.Message, all)
			for n := range msgs {
				msgs[n] = message.NewMessage(fmt.Sprint(n), nil)
			}
			c.startForwarder()
			c.publish(msgs...)
			c.eventually("the messages are in the queue", func() bool { return c.count(`once_outbox`) == 0 })
			c.startRouter()
			c.eventually("all messages are handled", func() bool { return c.count(`batches`) == all })
			var largest int
			if err := c.db.QueryRowContext(t.Context(),
				`SELECT count(*) FROM batches GROUP BY batch ORDER BY 1 DESC LIMIT 1`).Scan(&largest); err != nil {
				t.Fatal(err)
			}
			if largest != batch {
				t.Errorf("the largest batch has %d messages, not %d", largest, batch)
			}
		})
	}
}
