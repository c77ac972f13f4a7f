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

// The suite's tests are parallel, and expect what they wait for within seconds:
// one after another each has the machine, and SQLite's only writer, for itself.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "1"); err != nil {
		panic(err)
	}
	testkit.Main(m, testkit.StockAMQP)
}

// features are those that every way of a message has. Off are:
//
//   - ExactlyOnceDelivery: copies exist on every transport; they have no effect
//     because of the inbox, and here is no handler that would have one.
//   - GuaranteedOrder: with many messages in flight there is none; see ordered.
//   - RestartServiceCommand: the suite's own TestReconnect reads, without a
//     lock, what a goroutine writes that it never ends: it fails with -race, and
//     for what it leaves. Brokers and databases are restarted in
//     tests/forwarding and tests/conformance.
//   - NewSubscriberReceivesOldMessages: a queue, as a row, is gone when its
//     message is done.
//   - ContextPreserved: what is stored has no context.
//   - RequireSingleInstance: any number of publishers and subscribers may be made.
var features = tests.Features{
	ConsumerGroups: true,
	Persistent:     true,
	// The long form sends 10,000 messages more, one transaction each. With -race
	// that is minutes, and shows nothing but speed.
	ForceShort: true,
}

// pubSub makes a Pub/Sub for a consumer group. Ordered is one that keeps the
// order of messages with the same payload.
type pubSub func(t *testing.T, group string, ordered bool) (message.Publisher, message.Subscriber)

// run runs the suite: what needs order on its own, with an order to keep.
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
	// Several that share a queue share its messages, and no order.
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

// closed closes every subscriber: TestPublishSubscribeInOrder closes its own too
// early, before it subscribes.
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
// test has ended. By then everything has to be sent, without a dead letter.
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

// publisher commits what it publishes, as a service does beside its own rows.
type publisher struct {
	*service

	ordered bool // messages with the same payload, by an ordering key
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

// Close does nothing: what is committed will be sent.
func (publisher) Close() error { return nil }
