package universal

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/embedded"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/schema"
)

// The tests of the suite are parallel, and wait only for seconds. Here they run one after the
// other, so that each test has the machine, and SQLite's only writer, for itself.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "1"); err != nil {
		panic(err)
	}
	kit.MainWithTables(m, kit.StockAMQP)
}

// features says which features of Watermill's test suite all transports have. The other
// features are off:
//
//   - ExactlyOnceDelivery: every transport delivers duplicates. The inbox ignores
//     them, but this suite has no handler with an inbox.
//   - GuaranteedOrder: with many messages in flight there is no order; see ordered.
//   - RestartServiceCommand: TestReconnect of the suite has a data race with a
//     goroutine that it never ends, and fails with -race. tests/forwarding and
//     tests/conformance restart brokers and databases.
//   - NewSubscriberReceivesOldMessages: a message leaves its queue or table when it is
//     handled.
//   - ContextPreserved: a stored message has no context.
//   - RequireSingleInstance: any number of publishers and subscribers can exist.
var features = tests.Features{
	ConsumerGroups: true,
	Persistent:     true,
	// The long form sends 10,000 more messages, each in a transaction. With
	// -race this takes minutes and tests only speed.
	ForceShort: true,
}

// pubSub returns a Pub/Sub for a consumer group. If ordered is true, it keeps the order
// of messages with the same payload.
type pubSub func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber)

// run runs the suite. The tests that need order run separately, with an ordered
// Pub/Sub.
func run(t *testing.T, create pubSub) {
	t.Helper()
	create = closed(create)
	tests.TestPubSub(t, features,
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			t.Helper()
			return create(t, "test", false)
		},
		func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			t.Helper()
			return create(t, group, false)
		})

	ordered := features
	ordered.GuaranteedOrder = true
	// Several subscribers of one queue share its messages, so there is no
	// order.
	ordered.GuaranteedOrderWithSingleSubscriber = true
	for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
		"TestPublishSubscribeInOrder": tests.TestPublishSubscribeInOrder, "TestNoAck": tests.TestNoAck,
	} {
		t.Run("ordered/"+name, func(t *testing.T) {
			test(t, tests.TestContext{TestID: tests.NewTestID(), Features: ordered},
				func(t *testing.T) (message.Publisher, message.Subscriber) {
					t.Helper()
					return create(t, "test", true)
				})
		})
	}
}

// closed returns create with an addition: every subscriber is closed at the end of its
// test. TestPublishSubscribeInOrder of the suite does not do this. By mistake, it
// closes its subscriber before it subscribes.
func closed(create pubSub) pubSub {
	return func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber) {
		t.Helper()
		publisher, subscriber := create(t, group, ordered)
		t.Cleanup(func() {
			kit.Check(t, subscriber.Close())
		})
		return publisher, subscriber
	}
}

// service is a producer with its outbox, and a forwarder that runs until the
// test ends. By then all messages must be sent, without a dead letter.
type service struct {
	*testing.T

	db        *sql.DB
	box       *outbox.Outbox
	forwarder *forwarder.Forwarder
}

func newService(t *testing.T, db, forwarding *sql.DB, transport message.Publisher, config schema.Config) *service {
	t.Helper()
	box, err := outbox.New(outbox.Config{Schema: config})
	kit.OK(t, err)
	fwd, err := forwarder.New(forwarding, transport, forwarder.Config{Schema: config, Logger: kit.Logger(t)})
	kit.OK(t, err)
	s := &service{T: t, db: db, box: box, forwarder: fwd}
	ended := kit.Go(func() error { return fwd.Run(t.Context()) })
	t.Cleanup(func() {
		kit.Eventually(t, 30*time.Second, "the outbox is empty", func() bool { return s.count("outbox") == 0 })
		if n := s.count("outbox_dead"); n != 0 {
			t.Errorf("%d dead letters", n)
		}
		kit.Check(t, fwd.Close())
		kit.Check(t, <-ended)
	})
	return s
}

func (s *service) count(table string) int {
	s.Helper()
	var n int
	kit.Check(s, s.db.QueryRow(`SELECT COUNT(*) FROM once_`+table).Scan(&n))
	return n
}

// publisher publishes the messages of each call in a separate transaction.
type publisher struct {
	*service

	ordered bool // keeps the order of messages with the same payload, by an ordering key
}

func (p publisher) Publish(topic string, messages ...*message.Message) error {
	if p.ordered {
		for _, msg := range messages {
			outbox.SetOrderingKey(msg, string(msg.Payload))
		}
	}
	return p.box.InTx(p.Context(), p.db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, messages...)
	}, p.forwarder.Hint)
}

// Close does nothing. The forwarder sends the committed messages even after the
// publisher is closed.
func (publisher) Close() error { return nil }

// fanout declares an exchange for each topic, and a queue for each of its
// groups.
func fanout(uri, group string) amqp.Config {
	return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group))
}

// ours returns fanout with the marshaler of package rabbit.
func ours(uri, group string) amqp.Config {
	config := fanout(uri, group)
	config.Marshaler = rabbit.Marshaler{}
	return config
}

// lenient accepts that messages were nacked: some tests of the suite close a
// subscriber before they ack its messages.
type lenient struct{ *rabbit.Subscriber }

func (l lenient) Close() error {
	if err := l.Subscriber.Close(); !errors.Is(err, rabbit.ErrGivenBack) {
		return err
	}
	return nil
}

// The suite passes with outbox, forwarder and RabbitMQ, with rabbit's publisher and subscriber.
func TestRabbit(t *testing.T) {
	broker, s := onRabbit(t)
	run(t, func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber) {
		t.Helper()
		subscribing := rabbit.SubscriberConfig{NackMin: 10 * time.Millisecond, CloseTimeout: time.Second}
		if ordered {
			subscribing.InFlight = 1
		}
		subscriber, err := rabbit.NewSubscriber(ours(broker.URL, group), subscribing)
		kit.OK(t, err)
		return publisher{s, ordered}, lenient{subscriber}
	})
}

// The suite passes with the publisher and the subscriber of watermill-amqp, too. This subscriber
// has only one message in flight, so it keeps the order in which the broker delivers messages.
func TestStockRabbit(t *testing.T) {
	kit.Long(t) // in make test, the suite runs with rabbit, and tests/dropin uses the stock publisher and subscriber
	broker := kit.Rabbit(t)
	config := fanout(broker.URL, "")
	config.Publish.ConfirmDelivery = true // otherwise messages could be lost
	transport, err := amqp.NewPublisher(config, watermill.NopLogger{})
	kit.OK(t, err)
	s := onPostgres(t, transport)
	run(t, func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber) {
		t.Helper()
		subscriber, err := amqp.NewSubscriber(fanout(broker.URL, group), watermill.NopLogger{})
		kit.OK(t, err)
		return publisher{s, ordered}, subscriber
	})
}

// onPostgres returns a service whose forwarder publishes to transport. The
// transport is closed after the forwarder.
func onPostgres(t *testing.T, transport message.Publisher) *service {
	t.Helper()
	db := kit.Postgres(t)
	kit.OK(t, schema.Up(t.Context(), db.DB, schema.Config{}))
	t.Cleanup(func() {
		kit.Check(t, transport.Close())
	})
	return newService(t, db.DB, db.DB, transport, schema.Config{})
}

// onRabbit is like onPostgres, with the publisher of package rabbit.
func onRabbit(t *testing.T) (kit.Broker, *service) {
	t.Helper()
	broker := kit.Rabbit(t)
	transport, err := rabbit.NewPublisher(ours(broker.URL, ""), rabbit.PublisherConfig{})
	kit.OK(t, err)
	return broker, onPostgres(t, transport)
}

// The suite passes with outbox, forwarder, RabbitMQ and a durable consumer. A nacked message stays
// in its row and is delivered again. Only messages of the same key keep their order.
func TestDurableConsumer(t *testing.T) {
	kit.Long(t) // in make test, the suite runs with RabbitMQ
	broker, s := onRabbit(t)
	run(t, func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber) {
		t.Helper()
		subscriber, err := rabbit.NewSubscriber(ours(broker.URL, group), rabbit.SubscriberConfig{InFlight: 100, CloseTimeout: time.Second})
		kit.OK(t, err)
		storage, err := durable.New(s.db, durable.Config{})
		kit.OK(t, err)
		retrying := retry.Config{
			PollInterval: 20 * time.Millisecond, CloseTimeout: time.Second, Lease: 3 * time.Second, Policy: soon,
			ShareConsumer: true, // the subscribers of a group are instances of one service
		}
		if ordered {
			retrying.KeyOrder = retry.BlockWhileRetried
		}
		retries, err := retry.New(s.db, retrying)
		kit.OK(t, err)
		return publisher{s, ordered}, &named{retries: retries, group: group, sub: storage.Subscriber(lenient{subscriber})}
	})
}

// soon makes nacked rows due again after a short time; no retry middleware
// counts their attempts.
var soon = retry.Policy{Delayed: 1, Base: 10 * time.Millisecond, Max: 10 * time.Millisecond}

// named is a subscriber that uses a separate consumer for each topic. The suite sends one id to
// many topics, and a single consumer would handle this id only once. Like lenient, it accepts that
// messages were nacked.
type named struct {
	retries *retry.Retries
	group   string
	sub     message.Subscriber

	mu     sync.Mutex
	topics []message.Subscriber
}

func (n *named) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub := n.retries.Subscriber(n.group+" "+topic, n.sub)
	n.mu.Lock()
	n.topics = append(n.topics, sub)
	n.mu.Unlock()
	return sub.Subscribe(ctx, topic)
}

// SubscribeInitialize implements message.SubscribeInitializer.
func (n *named) SubscribeInitialize(topic string) error {
	if initializer, ok := n.retries.Subscriber(n.group, n.sub).(message.SubscribeInitializer); ok {
		return initializer.SubscribeInitialize(topic)
	}
	return nil
}

func (n *named) Close() error {
	n.mu.Lock()
	topics := slices.Clone(n.topics)
	n.mu.Unlock()
	var (
		closing sync.WaitGroup
		mu      sync.Mutex
		errs    []error
	)
	for _, sub := range append(topics, n.sub) {
		closing.Go(func() {
			if err := sub.Close(); !errors.Is(err, retry.ErrGivenBack) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	closing.Wait()
	return errors.Join(errs...)
}

// The suite passes with outbox, forwarder and the embedded transport, in one SQLite database.
func TestEmbeddedTransport(t *testing.T) {
	kit.Long(t) // in make test, the suite runs with RabbitMQ
	db := kit.SQLite(t)
	config := kit.Tables(t, db)
	transport, err := embedded.New(db.DB, embedded.Config{Schema: config})
	kit.OK(t, err)
	t.Cleanup(func() {
		kit.Check(t, transport.Close())
	})
	s := newService(t, db.DB, db.DB, transport, config)
	run(t, func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber) {
		t.Helper()
		retrying := retry.Config{
			Schema: config, PollInterval: 200 * time.Millisecond, CloseTimeout: time.Second, Lease: 3 * time.Second, Policy: soon,
			ShareConsumer: true, // the subscribers of a group are instances of one service
		}
		if ordered {
			retrying.KeyOrder = retry.BlockWhileRetried
		}
		retries, err := retry.New(db.DB, retrying)
		kit.OK(t, err)
		return publisher{s, ordered}, &named{retries: retries, group: group, sub: transport.Subscriber()}
	})
}
