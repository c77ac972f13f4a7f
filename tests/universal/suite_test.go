package universal

import (
	"database/sql"
	"flag"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// The tests of the suite are parallel, and wait only for seconds. Here they run one after the
// other, so that each test has the machine, and SQLite's only writer, for itself.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "1"); err != nil {
		panic(err)
	}
	testkit.MainWithTables(m, testkit.StockAMQP)
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
			if err := subscriber.Close(); err != nil {
				t.Error(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	fwd, err := forwarder.New(forwarding, transport, forwarder.Config{Schema: config, Logger: testkit.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{T: t, db: db, box: box, forwarder: fwd}
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(t.Context()) }()
	t.Cleanup(func() {
		testkit.Eventually(t, 30*time.Second, "the outbox is empty", func() bool { return s.count("outbox") == 0 })
		if n := s.count("outbox_dead"); n != 0 {
			t.Errorf("%d dead letters", n)
		}
		if err := fwd.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *service) count(table string) int {
	s.Helper()
	var n int
	if err := s.db.QueryRow(`SELECT COUNT(*) FROM once_` + table).Scan(&n); err != nil {
		s.Error(err)
	}
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
