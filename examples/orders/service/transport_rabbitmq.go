package service

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/watermill-once/once/rabbit"
)

// RabbitMQ carries events through a broker. Each topic is a fanout exchange, and each
// consumer of the topic has a quorum queue.
type RabbitMQ struct {
	url       string
	namespace string
	logger    watermill.LoggerAdapter

	publisher   *rabbit.Publisher
	subscribers []*rabbit.Subscriber
}

// NewRabbitMQ returns a transport that uses the broker at url. The names of exchanges and
// queues begin with namespace. NewRabbitMQ fails if it cannot connect, so that a wrong
// address or password stops the start. Without this check, the publisher and the
// subscribers would wait for the broker, and return no error.
func NewRabbitMQ(url, namespace string, logger watermill.LoggerAdapter) (*RabbitMQ, error) {
	if _, err := amqp091.ParseURI(url); err != nil {
		return nil, errors.New("service: the AMQP URL cannot be parsed") // err may contain the password
	}
	probe, err := amqp091.Dial(url)
	if err == nil {
		err = probe.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("service: connect to the broker: %w", err)
	}
	t := &RabbitMQ{url: url, namespace: namespace, logger: logger}
	if t.publisher, err = rabbit.NewPublisher(t.config(Subscription{}), rabbit.PublisherConfig{Logger: logger}); err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	return t, nil
}

// Exchange returns the name of a topic's exchange.
func (t *RabbitMQ) Exchange(topic string) string { return t.namespace + "." + topic }

// Queue returns the name of a subscription's queue.
func (t *RabbitMQ) Queue(to Subscription) string { return t.Exchange(to.Topic) + "." + to.Consumer }

// config returns the configuration of the subscriber for a subscription. The publisher
// uses the configuration for an empty Subscription.
func (t *RabbitMQ) config(to Subscription) amqp.Config {
	config := amqp.NewDurablePubSubConfig(t.url, func(string) string { return t.Queue(to) })
	config.Exchange.GenerateName = t.Exchange
	config.Marshaler = rabbit.Marshaler{}
	// Since RabbitMQ 4.0, a quorum queue drops a message that was returned 20 times.
	// The subscriber declares the queue without this limit. A queue that existed before
	// an upgrade needs a policy; the subscriber logs this.
	config.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	if to.InOrder {
		config.Queue.Arguments["x-single-active-consumer"] = true
	}
	return config
}

// Publisher implements [Transport].
func (t *RabbitMQ) Publisher() message.Publisher { return t.publisher }

// Subscriber implements [Transport].
func (t *RabbitMQ) Subscriber(to Subscription) (message.Subscriber, error) {
	subscriber, err := rabbit.NewSubscriber(t.config(to), rabbit.SubscriberConfig{InFlight: to.InFlight, Logger: t.logger})
	if err != nil {
		return nil, err
	}
	t.subscribers = append(t.subscribers, subscriber)
	if err := subscriber.SubscribeInitialize(to.Topic); err != nil {
		return nil, fmt.Errorf("declare queue %s: %w", t.Queue(to), err)
	}
	return subscriber, nil
}

// Check implements [Transport].
func (t *RabbitMQ) Check(topic string, msg *message.Message) error { return rabbit.Check(topic, msg) }

// Close implements [Transport]. It also closes the subscribers, because the router
// closes them only if it has run.
func (t *RabbitMQ) Close() error {
	errs := []error{t.publisher.Close()}
	for _, subscriber := range t.subscribers {
		errs = append(errs, subscriber.Close())
	}
	return errors.Join(errs...)
}
