package tests

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

func TestMain(m *testing.M) { kit.MainWithTables(m) }

// chain is a service with all parts: outbox, forwarder, RabbitMQ, consumers.
type chain struct {
	*testing.T

	db       *sql.DB
	amqpURL  string
	nodes    []string // nodes of the cluster of the broker; nil means the node of amqpURL
	queues   string   // type of the queues
	limit    int32    // delivery limit of the queues; the first delivery does not count; 0 means no limit
	window   int      // Window of the forwarder; 0 means its default
	order    retry.KeyOrder
	topology func(consumer string) wamqp.Config // nil means one exchange for each topic
	router   *message.Router
	consumer *once.Consumer
	forward  *forwarder.Forwarder
	flooded  int // number of events of publishFlood
}

// newChain creates the tables, and returns a chain without handlers.
func newChain(t *testing.T, db *sql.DB, amqpURL string) *chain {
	t.Helper()
	c := &chain{T: t, db: db, amqpURL: amqpURL, queues: "quorum"}
	kit.OK(t, schema.Up(t.Context(), db, schema.Config{}))
	// The table has no unique constraint, so that a repeated effect is visible.
	c.exec(`CREATE TABLE effects (consumer text, message_id text, payload bytea)`)
	c.build()
	return c
}

func (c *chain) build() {
	c.Helper()
	var err error
	c.consumer, err = once.NewConsumer(c.db, once.ConsumerConfig{
		Logger: kit.Logger(c.T),
		Retry: retry.Config{
			Policy:       retry.Policy{Immediate: 1, Delayed: 3, Base: 20 * time.Millisecond},
			PollInterval: 20 * time.Millisecond,
			Lease:        2 * time.Second,
			KeyOrder:     c.order,
		},
	})
	kit.OK(c, err)
	c.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	kit.OK(c, err)
}

// config returns a configuration with a fanout exchange for each topic, and a queue for each
// consumer of the topic. If topology is set, config returns its result instead.
func (c *chain) config(consumer string) wamqp.Config {
	if c.topology != nil {
		return c.topology(consumer)
	}
	config := wamqp.NewDurablePubSubConfig(c.amqpURL, func(topic string) string { return topic + "." + consumer })
	config.Marshaler = rabbit.Marshaler{}
	config.Queue.Arguments = amqp.Table{"x-queue-type": c.queues}
	if c.limit > 0 {
		config.Queue.Arguments["x-delivery-limit"] = c.limit
	}
	config.Connection.Reconnect = &wamqp.ReconnectConfig{
		BackoffInitialInterval: 50 * time.Millisecond, BackoffMultiplier: 1.5, BackoffMaxInterval: time.Second,
	}
	return config
}

// handle adds a consumer of topic.
func (c *chain) handle(consumer, topic string, h once.HandlerFunc) {
	c.Helper()
	c.consumer.AddHandler(c.router, consumer, topic, c.declare(consumer, topic), h)
}

// declare creates the queue of a consumer and returns its subscriber.
func (c *chain) declare(consumer, topic string) *rabbit.Subscriber {
	c.Helper()
	sub, err := rabbit.NewSubscriber(c.config(consumer), rabbit.SubscriberConfig{Logger: kit.Logger(c.T), Nodes: c.nodes})
	kit.OK(c, err)
	kit.OK(c, sub.SubscribeInitialize(topic))
	return sub
}

// start runs the router and the forwarder until the test ends.
func (c *chain) start() {
	c.Helper()
	if c.forward == nil {
		c.startForwarder()
	}
	c.startRouter()
}

func (c *chain) startRouter() {
	c.Helper()
	ended := kit.Go(func() error { return c.router.Run(context.WithoutCancel(c.Context())) })
	select {
	case <-c.router.Running():
	case err := <-ended:
		c.Fatal(err)
	}
	c.Cleanup(func() {
		if err := c.router.Close(); err != nil {
			c.Errorf("router: %v", err)
		}
		if err := <-ended; err != nil {
			c.Errorf("router: %v", err)
		}
	})
}

func (c *chain) startForwarder() {
	c.Helper()
	publisher, err := rabbit.NewPublisher(c.config("publisher"), rabbit.PublisherConfig{Logger: kit.Logger(c.T), Nodes: c.nodes})
	kit.OK(c, err)
	c.forward, err = forwarder.New(c.db, publisher, forwarder.Config{
		Logger: kit.Logger(c.T), Backoff: forwarder.Exponential(20*time.Millisecond, 200*time.Millisecond), MaxAttempts: 1000,
		Window: c.window,
	})
	kit.OK(c, err)
	ended := kit.Go(func() error { return c.forward.Run(context.WithoutCancel(c.Context())) })
	c.Cleanup(func() {
		if err := c.forward.Close(); err != nil {
			c.Errorf("forwarder: %v", err)
		}
		if err := <-ended; err != nil {
			c.Errorf("forwarder: %v", err)
		}
		if err := publisher.Close(); err != nil {
			c.Errorf("publisher: %v", err)
		}
	})
}

// record returns a handler that records the effect of a message for a consumer.
func record(consumer string) once.HandlerFunc {
	return func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1, $2, $3)`, consumer, msg.UUID, []byte(msg.Payload))
		return nil, err
	}
}

func (c *chain) publish(messages ...*message.Message) {
	c.Helper()
	kit.OK(c, outbox.InTx(c.Context(), c.db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(placed, messages...)
	}))
}

// inject publishes to the broker without the outbox, like a foreign sender.
func (c *chain) inject(publishing amqp.Publishing) {
	c.Helper()
	conn, err := amqp.Dial(c.amqpURL)
	kit.OK(c, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(c, err)
	kit.OK(c, channel.PublishWithContext(c.Context(), placed, "", false, false, publishing))
}

func (c *chain) exec(query string) {
	c.Helper()
	kit.Exec(c, c.db, query)
}

// patience is a timeout for a busy machine.
const patience = 2 * time.Minute

// count returns a number of rows, or -1 if the database does not answer.
func (c *chain) count(what string) int {
	var n int
	if err := c.db.QueryRowContext(c.Context(), `SELECT COUNT(*) FROM `+what).Scan(&n); err != nil {
		return -1
	}
	return n
}

func (c *chain) eventually(what string, cond func() bool) {
	c.Helper()
	kit.Eventually(c.T, patience, what, cond)
}

// settle waits until the given number of effects exists and no unfinished message is
// left. It fails if an effect happened twice.
func (c *chain) settle(effects int) {
	c.Helper()
	kit.Falls(c.T, patience, fmt.Sprintf("missing of %d effects, or under way", effects), func() int {
		done, forwarding, waiting := c.count(`effects`), c.count(`once_outbox`), c.count(`once_parked WHERE state = 'waiting'`)
		if min(done, forwarding, waiting) < 0 {
			return math.MaxInt // unknown
		}
		return max(0, effects-done) + forwarding + waiting
	})
	if n := c.count(`effects`); n != effects {
		c.Errorf("%d effects, want %d", n, effects)
	}
	if n := c.count(`(SELECT FROM effects GROUP BY consumer, message_id HAVING COUNT(*) > 1) AS doubled`); n != 0 {
		c.Errorf("%d effects happened more than once", n)
	}
}

const placed = "orders.placed"

func TestWholeChain(t *testing.T) {
	c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	const orders = 50
	var calls atomic.Int32
	c.handle("payments", placed, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if calls.Add(1)%5 == 0 {
			return nil, fmt.Errorf("call %d fails", calls.Load())
		}
		captured := message.NewMessage(msg.UUID+"-captured", msg.Payload)
		_, err := record("payments")(ctx, tx, msg)
		return []*message.Message{once.To("payments.captured", captured)}, err
	})
	c.handle("inventory", placed, record("inventory"))
	c.handle("shipping", "payments.captured", record("shipping"))
	c.start()
	nasty := []byte("\x00\xff{\"n\": 1.0, \"z\": \"\\u0000\"}")
	for n := range orders {
		msg := message.NewMessage(fmt.Sprintf("order-%d", n), nasty)
		c.publish(msg)
		if n%10 == 0 {
			c.publish(msg) // a duplicate
		}
	}
	c.settle(3 * orders)
	intact := kit.One[int](t, c.db, `SELECT COUNT(*) FROM effects WHERE payload = $1`, nasty)
	if intact != 3*orders {
		t.Errorf("%d of %d payloads arrived byte for byte", intact, 3*orders)
	}
}

// Trap 08. A missing queue delays messages, but no message is lost.
func TestQueueDeclaredLaterReceivesItsMessages(t *testing.T) {
	c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	c.startForwarder()
	c.publish(message.NewMessage("m1", nil), message.NewMessage("m2", nil))
	c.eventually("both messages were refused, and wait", func() bool {
		return c.count(`once_outbox WHERE attempts > 0 AND last_error LIKE '%NO_ROUTE%'`) == 2
	})
	c.handle("payments", placed, record("payments"))
	c.start()
	c.settle(2)
}

// A consumer without its tables keeps its message unacked, and continues when
// the tables exist.
func TestMissingTablesLoseNoMessages(t *testing.T) {
	c := newChain(t, kit.Postgres(t).DB, kit.Rabbit(t).URL)
	called := make(chan struct{}, 100)
	c.handle("payments", placed, func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		called <- struct{}{}
		return record("payments")(ctx, tx, msg)
	})
	c.start()
	c.exec(`ALTER TABLE once_inbox RENAME TO elsewhere`) // renamed after the start, because the router checks the tables
	c.publish(message.NewMessage("m1", nil))
	c.eventually("the message is forwarded", func() bool { return c.count(`once_outbox`) == 0 })
	select {
	case <-called:
		t.Error("the handler ran without an inbox")
	case <-time.After(200 * time.Millisecond):
	}
	if n := c.count(`once_parked`); n != 0 {
		t.Errorf("%d messages were parked because of the missing table", n)
	}
	c.exec(`ALTER TABLE elsewhere RENAME TO once_inbox`)
	c.settle(1)
}
