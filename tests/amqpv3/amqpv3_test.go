package amqpv3

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/rabbit/amqpv3"
)

// configs are the constructors of v3 with durable queues. In the topic configuration, the
// routing key is the topic, and the queue has another name.
var configs = map[string]func(uri, name string) amqp.Config{
	"queue": func(uri, _ string) amqp.Config { return amqp.NewDurableQueueConfig(uri) },
	"fanout": func(uri, _ string) amqp.Config {
		return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("payments"))
	},
	"topic": func(uri, name string) amqp.Config {
		return amqp.NewDurableTopicConfig(uri, "exchange "+name, "queue "+name)
	},
}

// The parts of v3 and of this module send messages to each other, each side with its own
// marshaler, after the other side has declared the exchange and the queue.
func TestStockPartsAndOursUnderstandEachOther(t *testing.T) {
	t.Parallel()
	uri := kit.Rabbit(t).URL
	for kind, arguments := range map[string]amqp091.Table{"classic": nil, "quorum": unlimited(t, uri)} {
		for name, newConfig := range configs {
			for _, side := range []struct{ from, to, declares transport }{
				{stock, ours, stock}, {ours, stock, ours}, {ours, ours, stock},
			} {
				t.Run(kind+" "+name+" from "+side.from.name+" to "+side.to.name, func(t *testing.T) {
					topic := kit.Broker{}.Name("orders.placed")
					config := newConfig(uri, topic)
					config.Queue.Arguments = arguments
					side.declares.declare(t, config, topic)
					messages := subscribe(t, side.to.newSubscriber(t, config), topic)
					publish(t, side.from.newPublisher(t, config), topic, "m")
					receive(t, messages, "m").Ack()
				})
			}
		}
	}
}

// v3's topic exchange is not durable, and the one of this module is. Whichever exists
// first, the parts of this module use it.
func TestExistingTopicExchangeIsUsedWhateverItsDurability(t *testing.T) {
	t.Parallel()
	uri := kit.Rabbit(t).URL
	v3 := amqp.NewDurableTopicConfig(uri, "transient", "payments")
	stock.declare(t, v3, "orders.*")
	v2 := rabbit.TopicExchange(uri, "transient", "billing")
	messages := subscribe(t, open(t, subscriberV2, v2), "orders.#")
	publish(t, open(t, publisherV2, v2), "orders.placed", "m")
	receive(t, messages, "m").Ack()
	publish(t, stock.newPublisher(t, v3), "orders.placed", "from stock")
	receive(t, messages, "from stock").Ack()

	v2 = rabbit.TopicExchange(uri, "durable", "billing")
	kit.OK(t, open(t, subscriberV2, v2).SubscribeInitialize("orders.#"))
	v3 = amqp.NewDurableTopicConfig(uri, "durable", "other")
	messages = subscribe(t, ours.newSubscriber(t, v3), "orders.*")
	publish(t, ours.newPublisher(t, v3), "orders.placed", "m")
	receive(t, messages, "m").Ack()

	// The stock parts need the same value.
	if err := stock.tryDeclare(t, v3, "orders.*"); err == nil || !strings.Contains(err.Error(), "inequivalent arg 'durable'") {
		t.Errorf("the stock subscriber declares a durable exchange again as one that is not: %v", err)
	}
	v3.Exchange.Durable = true
	stock.declare(t, v3, "orders.*")
}

// A quorum queue that this module has declared keeps a message that was returned more than
// 20 times, and the subscriber of v3 can use the queue only with the same argument. A queue
// that the subscriber of v3 has declared keeps its limit, and this module uses it as it is.
func TestQuorumQueueHasNoDeliveryLimit(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	uri := kit.PrivateRabbitOf(t, "4.3").URL("/")
	config := amqp.NewDurableQueueConfig(uri)
	config.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	ours.declare(t, config, "ours")
	stock.declare(t, config, "stock")
	ours.declare(t, config, "stock")
	const times = 21 // the broker's default limit is 20
	if got := afterReturns(t, uri, "stock", times); got != "next" {
		t.Errorf("the queue of v3 delivers %q after %d returns, want \"next\": the limit has no effect in this test", got, times)
	}
	if got := afterReturns(t, uri, "ours", times); got != "m" {
		t.Errorf("the queue of this module delivers %q after %d returns, want \"m\"", got, times)
	}
	if err := stock.tryDeclare(t, config, "ours"); err == nil || !strings.Contains(err.Error(), "inequivalent arg 'x-delivery-limit'") {
		t.Errorf("without the argument, the subscriber of v3 declares the queue of this module: %v", err)
	}
	config.Queue.Arguments = unlimited(t, uri)
	stock.declare(t, config, "ours")
}

// A redelivered message is marked as v3 marks it, and another one is not, even if its
// sender has copied the mark.
func TestIsMessageRedelivered(t *testing.T) {
	t.Parallel()
	uri := kit.Rabbit(t).URL
	for name, marshaler := range map[string]amqp.Marshaler{"rabbit": rabbit.Marshaler{}, "default": amqp.DefaultMarshaler{}, "none": nil} {
		config := amqp.NewDurableQueueConfig(uri)
		config.Marshaler = marshaler
		messages := subscribe(t, open(t, newSubscriber, config), name)
		msg := message.NewMessage("m", []byte("payload of m"))
		msg.Metadata = message.Metadata{"customer": "17", amqp.MetadataRedeliveredKey: "true"}
		kit.OK(t, open(t, newPublisher, config).Publish(name, msg))
		first := receive(t, messages, "m")
		if amqp.IsMessageRedelivered(first) {
			t.Errorf("%s: the first delivery is marked as redelivered", name)
		}
		first.Nack()
		second := receive(t, messages, "m")
		if !amqp.IsMessageRedelivered(second) {
			t.Errorf("%s: the second delivery is not marked as redelivered", name)
		}
		second.Ack()
	}
}

// An invalid config is refused with the names of v3's fields.
func TestInvalidConfigIsRefused(t *testing.T) {
	config := amqp.Config{
		Connection: amqp.ConnectionConfig{
			Reconnect: &amqp.ReconnectConfig{BackoffInitialInterval: time.Hour, BackoffMaxInterval: time.Minute},
		},
		Publish: amqp.PublishConfig{Transactional: true},
	}
	_, publisher := amqpv3.NewPublisher(config, rabbit.PublisherConfig{})
	_, subscriber := amqpv3.NewSubscriber(config, rabbit.SubscriberConfig{})
	for part, c := range map[string]struct {
		err   error
		names []string
	}{
		"NewPublisher":  {publisher, []string{"Exchange.GenerateName", "Publish.GenerateRoutingKey", "Publish.Transactional"}},
		"NewSubscriber": {subscriber, []string{"Exchange.GenerateName", "Queue.GenerateName"}},
	} {
		if c.err == nil {
			t.Errorf("%s accepts an invalid config", part)
			continue
		}
		for _, name := range append(c.names, "Connection.AmqpURI", "Connection.Reconnect.BackoffInitialInterval") {
			if !strings.Contains(c.err.Error(), "rabbit: "+name+" ") {
				t.Errorf("the error of %s does not name %s:\n%v", part, name, c.err)
			}
			if !isField(reflect.TypeFor[amqp.Config](), name) {
				t.Errorf("the Config of v3 has no field %s", name)
			}
		}
	}
}

// isField reports whether path, such as "Queue.Durable", is a field of the struct.
func isField(of reflect.Type, path string) bool {
	for name := range strings.SplitSeq(path, ".") {
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		field, ok := of.FieldByName(name)
		if !ok {
			return false
		}
		of = field.Type
	}
	return true
}

// lenient ignores ErrGivenBack, because some tests of the suite close a subscriber that
// has unacked messages.
type lenient struct{ *rabbit.Subscriber }

func (l lenient) Close() error {
	if err := l.Subscriber.Close(); !errors.Is(err, rabbit.ErrGivenBack) {
		return err
	}
	return nil
}

// This is Watermill's test suite for all Pub/Subs.
func TestUniversalSuite(t *testing.T) {
	kit.Long(t) // in make test, the suite runs with the Config of v2
	uri := kit.Rabbit(t).URL
	create := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		t.Helper()
		config := amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group))
		config.Marshaler = rabbit.Marshaler{}
		subscriber, err := amqpv3.NewSubscriber(config, brisk)
		kit.OK(t, err)
		return ours.newPublisher(t, config), lenient{subscriber}
	}
	tests.TestPubSub(t, tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true},
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			t.Helper()
			return create(t, "test")
		}, create)
}

// subscriberV2 and publisherV2 create parts with a Config of v2.
func subscriberV2(config amqpv2.Config) (*rabbit.Subscriber, error) {
	return rabbit.NewSubscriber(config, brisk)
}

func publisherV2(config amqpv2.Config) (*rabbit.Publisher, error) {
	return rabbit.NewPublisher(config, rabbit.PublisherConfig{ReadyTimeout: time.Minute})
}
