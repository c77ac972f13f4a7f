package amqpv3

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/rabbit/amqpv3"
)

func TestMain(m *testing.M) { kit.Main(m, kit.StockAMQP) }

// transport is a publisher and a subscriber of one version.
type transport struct {
	name       string
	publisher  func(amqp.Config) (message.Publisher, error)
	subscriber func(amqp.Config) (message.Subscriber, error)
}

var (
	stock = transport{
		"stock v3",
		func(config amqp.Config) (message.Publisher, error) {
			config.Publish.ConfirmDelivery = true // otherwise messages could be lost
			return amqp.NewPublisher(config, watermill.NopLogger{})
		},
		func(config amqp.Config) (message.Subscriber, error) {
			return amqp.NewSubscriber(config, watermill.NopLogger{})
		},
	}
	ours = transport{
		"amqpv3",
		func(config amqp.Config) (message.Publisher, error) {
			config.Marshaler = rabbit.Marshaler{}
			return newPublisher(config)
		},
		func(config amqp.Config) (message.Subscriber, error) {
			config.Marshaler = rabbit.Marshaler{}
			return newSubscriber(config)
		},
	}

	// brisk is a configuration with short pauses.
	brisk = rabbit.SubscriberConfig{NackMin: 10 * time.Millisecond, ReadyTimeout: time.Minute, CloseTimeout: time.Second}
)

func newPublisher(config amqp.Config) (*rabbit.Publisher, error) {
	return amqpv3.NewPublisher(config, rabbit.PublisherConfig{ReadyTimeout: time.Minute})
}

func newSubscriber(config amqp.Config) (*rabbit.Subscriber, error) {
	return amqpv3.NewSubscriber(config, brisk)
}

func (tr transport) newPublisher(t *testing.T, config amqp.Config) message.Publisher {
	t.Helper()
	return open(t, tr.publisher, config)
}

func (tr transport) newSubscriber(t *testing.T, config amqp.Config) message.Subscriber {
	t.Helper()
	return open(t, tr.subscriber, config)
}

// open creates a part that is closed at the end of the test.
func open[C any, P interface{ Close() error }](t *testing.T, create func(C) (P, error), config C) P {
	t.Helper()
	part, err := create(config)
	kit.OK(t, err)
	t.Cleanup(func() { _ = part.Close() })
	return part
}

// declare declares the exchange and the queue of topic.
func (tr transport) declare(t *testing.T, config amqp.Config, topic string) {
	t.Helper()
	kit.OK(t, tr.tryDeclare(t, config, topic))
}

func (tr transport) tryDeclare(t *testing.T, config amqp.Config, topic string) error {
	t.Helper()
	subscriber, ok := tr.newSubscriber(t, config).(message.SubscribeInitializer)
	if !ok {
		t.Fatal("the subscriber has no SubscribeInitialize")
	}
	return subscriber.SubscribeInitialize(topic)
}

func subscribe(t *testing.T, subscriber message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := subscriber.Subscribe(context.WithoutCancel(t.Context()), topic)
	kit.OK(t, err)
	return messages
}

func publish(t *testing.T, publisher message.Publisher, topic, id string) {
	t.Helper()
	msg := message.NewMessage(id, []byte("payload of "+id))
	msg.Metadata.Set("customer", "17")
	kit.Eventually(t, time.Minute, "publish "+id, func() bool { // a new quorum queue first needs a leader
		return publisher.Publish(topic, msg) == nil
	})
}

// receive returns the next message, which must be the one that publish has sent.
func receive(t *testing.T, messages <-chan *message.Message, id string) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatalf("the subscription has ended before %s", id)
		}
		if msg.UUID != id || string(msg.Payload) != "payload of "+id || msg.Metadata.Get("customer") != "17" {
			t.Fatalf("got message %s with %q and %v, want %s", msg.UUID, msg.Payload, msg.Metadata, id)
		}
		return msg
	case <-time.After(time.Minute):
		t.Fatalf("no message within a minute, want %s", id)
		return nil
	}
}

// unlimited returns the arguments of a quorum queue with which both sides declare it.
// RabbitMQ 4.0 and newer limit the deliveries of a quorum queue. The subscriber of rabbit
// turns this off, so the stock subscriber needs the same argument.
func unlimited(t *testing.T, uri string) amqp091.Table {
	t.Helper()
	arguments := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	conn, err := amqp091.Dial(uri)
	kit.OK(t, err)
	defer conn.Close()
	if version, _ := conn.Properties["version"].(string); version >= "4" {
		arguments["x-delivery-limit"] = int32(-1)
	}
	return arguments
}

// afterReturns sends the message "m" to the queue and returns it the given number of times.
// It then sends the message "next", and returns the message that the queue delivers. It uses
// basic.reject, because RabbitMQ 4.3 does not count nacks towards the limit of a queue.
func afterReturns(t *testing.T, uri, queue string, times int) string {
	t.Helper()
	conn, err := amqp091.Dial(uri)
	kit.OK(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	kit.OK(t, err)
	kit.OK(t, errors.Join(channel.Confirm(false), channel.Qos(1, 0, false)))
	deliveries, err := channel.ConsumeWithContext(t.Context(), queue, "", false, false, false, false, nil)
	kit.OK(t, err)
	send := func(body string) {
		confirm, err := channel.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, Body: []byte(body),
		})
		kit.OK(t, err)
		if stored, err := confirm.WaitContext(t.Context()); err != nil || !stored {
			t.Fatalf("%s is not stored: %v", body, err)
		}
	}
	next := func() amqp091.Delivery {
		select {
		case delivery, ok := <-deliveries:
			if !ok {
				t.Fatalf("queue %s: the consumer has ended", queue)
			}
			return delivery
		case <-time.After(time.Minute):
			t.Fatalf("queue %s: no delivery within a minute", queue)
			return amqp091.Delivery{}
		}
	}
	send("m")
	for range times {
		kit.OK(t, next().Reject(true))
	}
	send("next")
	return string(next().Body)
}
