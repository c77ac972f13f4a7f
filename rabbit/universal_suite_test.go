package rabbit_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/watermill-once/once/rabbit"
)

// lenient ignores ErrGivenBack, because some tests of the suite close a subscriber that
// has unacked messages.
type lenient struct{ *rabbit.Subscriber }

func (l lenient) Close() error {
	if err := l.Subscriber.Close(); !errors.Is(err, rabbit.ErrGivenBack) {
		return err
	}
	return nil
}

// This is Watermill's test suite for all Pub/Subs. Messages keep their order only if one
// message is in flight at a time.
func TestUniversalSuite(t *testing.T) {
	uri := brokerURL(t)
	pubSub := func(t *testing.T, config amqp.Config, cfg rabbit.SubscriberConfig) (message.Publisher, message.Subscriber) {
		t.Helper()
		cfg.CloseTimeout = time.Second
		return newPublisher(t, config, rabbit.PublisherConfig{}), lenient{newSubscriber(t, config, cfg)}
	}
	fanout := func(group string) amqp.Config {
		config := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group))
		config.Marshaler = rabbit.Marshaler{}
		return config
	}
	features := tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true}

	tests.TestPubSub(t, features,
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			t.Helper()
			return pubSub(t, fanout("test"), brisk)
		},
		func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			t.Helper()
			return pubSub(t, fanout(group), brisk)
		})

	features.GuaranteedOrder, features.GuaranteedOrderWithSingleSubscriber = true, true
	one := brisk
	one.InFlight = 1
	inOrder := func(t *testing.T) (message.Publisher, message.Subscriber) {
		t.Helper()
		return pubSub(t, fanout("test"), one)
	}
	for name, test := range map[string]func(*testing.T, tests.TestContext, tests.PubSubConstructor){
		"order": tests.TestPublishSubscribeInOrder, "no ack": tests.TestNoAck,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, tests.TestContext{TestID: tests.NewTestID(), Features: features}, inOrder)
		})
	}
}
