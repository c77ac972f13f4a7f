package tests

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/internal/test/servers"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/rabbit"
)

// publishFlood commits events while consumers and forwarder run.
func (c *chain) publishFlood(events int) {
	c.Helper()
	for range events / 100 {
		batch := make([]*message.Message, 100)
		for i := range batch {
			batch[i] = message.NewMessage(fmt.Sprintf("order-%d", c.flooded+i), []byte("body"))
		}
		c.publish(batch...)
		c.flooded += len(batch)
	}
}

// midway waits until some effects exist, and commits more events. So even on a fast machine
// messages flow when the fault comes.
func (c *chain) midway() {
	c.Helper()
	c.eventually("some effects exist", func() bool { return c.count(`effects`) > 50 })
	c.publishFlood(100)
}

// The broker is killed while the forwarder and consumers use it, and starts again. Each
// event takes effect once at each consumer.
func TestBrokerIsKilledWhileMessagesFlow(t *testing.T) {
	broker := kit.PrivateRabbit(t)
	c := newChain(t, kit.Postgres(t).DB, broker.URL("/"))
	// If RabbitMQ 3.10 is killed in the first seconds of a quorum queue, the
	// queue sometimes never gets a leader again.
	c.queues = "classic"
	c.window = 4 // slow enough to kill the broker before all messages are sent
	c.handle("payments", placed, record("payments"))
	c.handle("inventory", placed, record("inventory"))
	c.startRouter()
	kit.OK(t, broker.WriteDefinitions(t.Context()))
	c.publishFlood(kit.Sized(200, 2000))
	c.startForwarder()
	c.midway()
	broker.Kill()
	if c.count(`once_outbox`) == 0 {
		t.Fatal("all messages were forwarded before the broker was killed, so the test proves nothing")
	}
	kit.OK(t, broker.Restart(context.WithoutCancel(t.Context())))
	c.settle(2 * c.flooded)
	c.nothingWasCharged()
}

// In a cluster, the leader of a consumer's queue is killed while the forwarder and consumers use it.
// Each event takes effect once at each consumer, while the node is gone.
func TestLeaderIsKilledWhileMessagesFlow(t *testing.T) {
	kit.Long(t)
	nodes := kit.PrivateRabbitCluster(t, 3)
	c := newChain(t, kit.Postgres(t).DB, nodes[0].URL("/"))
	for _, node := range nodes {
		c.nodes = append(c.nodes, node.Address())
	}
	c.handle("payments", placed, record("payments"))
	c.handle("inventory", placed, record("inventory"))
	c.publishFlood(1000)
	c.start()
	c.midway()
	leads := fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s.payments">>)), `+
		`element(2, amqqueue:get_pid(Q)) =:= node()`, placed)
	leader := slices.IndexFunc(nodes, func(node *servers.Rabbit) bool {
		answer, err := node.Eval(t.Context(), leads)
		return err == nil && answer == "true"
	})
	if leader < 0 {
		t.Fatal("no node leads the queue")
	}
	killed, effects := time.Now(), c.count(`effects`)
	nodes[leader].Kill()
	c.eventually("messages take effect again", func() bool { return c.count(`effects`) > effects })
	t.Logf("messages take effect again after %v", time.Since(killed))
	c.publishFlood(1000)
	c.settle(2 * c.flooded)
	c.nothingWasCharged()
}

// The database is killed while the forwarder and consumers use it, and starts again.
// Each event takes effect once at each consumer.
func TestDatabaseIsKilledWhileMessagesFlow(t *testing.T) {
	server := kit.PrivatePostgres(t)
	c := newChain(t, open(t, server), kit.Rabbit(t).URL)
	c.handle("payments", placed, record("payments"))
	c.handle("inventory", placed, record("inventory"))
	c.publishFlood(kit.Sized(200, 2000))
	c.start()
	for range kit.Sized(1, 3) {
		c.midway()
		server.Kill()
		kit.OK(t, server.Restart(context.WithoutCancel(t.Context())))
	}
	c.settle(2 * c.flooded)
	c.nothingWasCharged()
}

// nothingWasCharged checks that the outage has put no message into the quarantine or the dead
// letters.
func (c *chain) nothingWasCharged() {
	c.Helper()
	for _, what := range []string{`once_outbox_dead`, `once_parked WHERE state = 'quarantined'`} {
		if n := c.count(what); n != 0 {
			c.Errorf("%d rows in %s", n, what)
		}
	}
}

func open(t *testing.T, server *servers.Postgres) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", server.DSN("postgres"))
	kit.OK(t, err)
	t.Cleanup(func() {
		kit.Check(t, db.Close())
	})
	return db
}

// newLimited returns a chain whose queues drop a message that returns to its queue for
// the second time.
func newLimited(t *testing.T) *chain {
	t.Helper()
	c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
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
	page, err := c.consumer.Quarantine().List(t.Context(), operate.Filter{})
	if err != nil || len(page.Rows) != 1 {
		t.Fatalf("%v, %d entries", err, len(page.Rows))
	}
	if e := page.Rows[0]; e.MessageID != "hopeless" || e.Attempts != 8 || string(e.Message.Payload) != "body" {
		t.Errorf("%+v", e)
	}
}

// Trap 73. While the consumer's database is down, a failed message does not
// return to the broker, which would drop it after some deliveries.
func TestOutageOfTheDatabaseUsesNoDeliveries(t *testing.T) {
	kit.Long(t)
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
			c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
			config.Logger = kit.Logger(t)
			var err error
			c.consumer, err = once.NewConsumer(c.db, config)
			kit.OK(t, err)
			sub, err := rabbit.NewSubscriber(c.config("payments"), rabbit.SubscriberConfig{Logger: kit.Logger(t)})
			kit.OK(t, err)
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
			kit.OK(t, sub.SubscribeInitialize(placed))
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
			kit.OK(t, c.db.QueryRowContext(t.Context(),
				`SELECT count(*) FROM batches GROUP BY batch ORDER BY 1 DESC LIMIT 1`).Scan(&largest))
			if largest != batch {
				t.Errorf("the largest batch has %d messages, not %d", largest, batch)
			}
		})
	}
}
