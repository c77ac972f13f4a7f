package service

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// Subscription is a consumer's subscription to a topic.
type Subscription struct {
	Consumer string // the inbox stores message ids under this name, so never change it
	Topic    string

	InFlight int  // maximum number of messages that are received and not acked
	InOrder  bool // only one instance receives at a time
}

// Subscriptions returns all subscriptions of the service.
func Subscriptions() []Subscription {
	return []Subscription{
		{Consumer: "payments", Topic: TopicOrdersPlaced, InFlight: inFlight},
		{Consumer: "inventory", Topic: TopicOrdersPlaced, InFlight: inFlight},
		{Consumer: "shipping", Topic: TopicPaymentsCaptured, InFlight: 2 * batchSize},
		{Consumer: "revenue", Topic: TopicPaymentsCaptured, InFlight: 2 * batchSize},
		{Consumer: "notifications", Topic: TopicPaymentsCaptured, InFlight: 2 * batchSize},
		{Consumer: "history", Topic: TopicOrdersChanged, InFlight: inFlight, InOrder: true},
		{Consumer: "tracking", Topic: TopicOrdersChanged, InFlight: inFlight},
	}
}

// adder returns the function that adds the handler of a consumer to the router. The
// handler gets its messages in the mode that suits it.
func (s *Service) adder(consumer string) func(to Subscription, sub message.Subscriber) {
	each := func(add addHandler, handle once.HandlerFunc) func(Subscription, message.Subscriber) {
		if s.hooks.Handler != nil {
			handle = s.hooks.Handler(consumer, handle)
		}
		return func(to Subscription, sub message.Subscriber) { add(s.router, to.Consumer, to.Topic, sub, handle) }
	}
	switch consumer {
	case "payments": // one message at a time, because shipping waits for the payment
		return each(s.consumer.AddHandler, capturePayment)
	case "inventory": // one message at a time, because the handler often fails, and would make its whole batch fail
		return each(s.consumer.AddHandler, reserveStock)
	case "shipping": // in batches, because the write is small, and most of the time is spent in the commit
		return each(s.consumer.AddHandlerInBatches, ship)
	case "revenue": // one call for each batch, because one statement writes all rows
		return func(to Subscription, sub message.Subscriber) {
			s.consumer.AddBatchHandler(s.router, to.Consumer, to.Topic, sub, s.hookedBatch(consumer, book))
		}
	case "notifications": // durable, because the mail provider is slow, and the broker's queue should not grow meanwhile
		return each(s.consumer.AddHandler, s.notify)
	case "history": // in the order of each ordering key, because a history must be in order
		return each(s.ordered.AddHandler, record)
	case "tracking": // only newer versions, because each message contains the whole state, and older messages are useless
		return each(s.newest.AddHandler, track)
	}
	panic("service: no handler of " + consumer)
}

// addHandler is the type of [once.Consumer.AddHandler].
type addHandler func(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle once.HandlerFunc,
) *message.Handler

// addConsumers adds every consumer to the router, and creates its queue. The broker
// refuses an event that no queue receives, so the queues must exist before the first
// event is sent.
func (s *Service) addConsumers() error {
	for _, to := range Subscriptions() {
		subscriber, err := s.transport.Subscriber(to)
		if err != nil {
			return fmt.Errorf("service: subscribe %s to %s: %w", to.Consumer, to.Topic, err)
		}
		s.adder(to.Consumer)(to, subscriber)
	}
	return nil
}
