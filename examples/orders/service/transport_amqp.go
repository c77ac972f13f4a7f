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

// AMQP carries events through RabbitMQ: a fanout exchange for each topic, and a
// quorum queue for each of its consumers.
type AMQP struct {
	url       string
	namespace string
	logger    watermill.LoggerAdapter

	publisher   *rabbit.Publisher
	subscribers []*rabbit.Subscriber
}

// NewAMQP returns a transport through the broker at url. Nothing in it needs the
// broker to be there at the start, but a wrong address or password is better
// found here than in the log. The names of exchanges and queues begin with
// namespace.
func NewAMQP(url, namespace string, logger watermill.LoggerAdapter) (*AMQP, error) {
	if _, err := amqp091.ParseURI(url); err != nil {
		return nil, errors.New("service: the AMQP URL cannot be read") // what the parser says can quote the password
	}
	probe, err := amqp091.Dial(url)
	if err == nil {
		err = probe.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("service: connect to the broker: %w", err)
	}
	t := &AMQP{url: url, namespace: namespace, logger: logger}
	if t.publisher, err = rabbit.NewPublisher(t.config(Subscription{}), rabbit.PublisherConfig{Logger: logger}); err != nil {
		return nil, fmt.Errorf("service: %w", err)
	}
	return t, nil
}

// Exchange returns the name of a topic's exchange.
func (t *AMQP) Exchange(topic string) string { return t.namespace + "." + topic }

// Queue returns the name of a subscription's queue.
func (t *AMQP) Queue(to Subscription) string { return t.Exchange(to.Topic) + "." + to.Consumer }

// config is that of one subscription, or of the publisher.
func (t *AMQP) config(to Subscription) amqp.Config {
	config := amqp.NewDurablePubSubConfig(t.url, func(string) string { return t.Queue(to) })
	config.Exchange.GenerateName = t.Exchange
	config.Marshaler = rabbit.Marshaler{}
	// From RabbitMQ 4.0 a quorum queue drops what comes back 20 times. The
	// subscriber declares it without that limit; a queue from before an upgrade
	// needs a policy, which it logs.
	config.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	if to.InOrder {
		config.Queue.Arguments["x-single-active-consumer"] = true
	}
	return config
}

// Publisher implements [Transport].
func (t *AMQP) Publisher() message.Publisher { return t.publisher }

// Subscriber implements [Transport].
func (t *AMQP) Subscriber(to Subscription) (message.Subscriber, error) {
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

// Close implements [Transport]. It closes the subscribers too, which the router
// does only if it ran.
func (t *AMQP) Close() error {
	errs := []error{t.publisher.Close()}
	for _, subscriber := range t.subscribers {
		errs = append(errs, subscriber.Close())
	}
	return errors.Join(errs...)
}
