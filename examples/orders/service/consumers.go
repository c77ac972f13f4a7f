package service

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// Subscription says who consumes what, and what its queue must be like.
type Subscription struct {
	Consumer string // what its messages are remembered under: it never changes
	Topic    string

	InFlight int  // messages that are received ahead of their acks
	InOrder  bool // one instance at a time receives
}

// Subscriptions are all that there are.
func Subscriptions() []Subscription {
	return []Subscription{
		{Consumer: "payments", Topic: TopicOrdersPlaced, InFlight: inFlight},
		{Consumer: "inventory", Topic: TopicOrdersPlaced, InFlight: inFlight},
		{Consumer: "shipping", Topic: TopicPaymentsCaptured, InFlight: 2 * together},
		{Consumer: "revenue", Topic: TopicPaymentsCaptured, InFlight: 2 * together},
		{Consumer: "notifications", Topic: TopicPaymentsCaptured, InFlight: 2 * together},
		{Consumer: "history", Topic: TopicOrdersChanged, InFlight: inFlight, InOrder: true},
		{Consumer: "tracking", Topic: TopicOrdersChanged, InFlight: inFlight},
	}
}

// adds says how each consumer handles its messages, each as it suits its work.
func (s *Service) adds(consumer string) func(to Subscription, sub message.Subscriber) {
	each := func(add addHandler, handle once.HandlerFunc) func(Subscription, message.Subscriber) {
		if s.hooks.Handler != nil {
			handle = s.hooks.Handler(consumer, handle)
		}
		return func(to Subscription, sub message.Subscriber) { add(s.router, to.Consumer, to.Topic, sub, handle) }
	}
	switch consumer {
	case "payments": // directly: nothing is ahead of the shipping that follows
		return each(s.consumer.AddHandler, capturePayment)
	case "inventory": // directly: it fails often, and would fail its batch each time
		return each(s.consumer.AddHandler, reserveStock)
	case "shipping": // in batches: it is a small write, and the commit is what it waits for
		return each(s.consumer.AddHandlerInBatches, ship)
	case "revenue": // all of a batch: its writes are one statement
		return func(to Subscription, sub message.Subscriber) {
			s.consumer.AddBatchHandler(s.router, to.Consumer, to.Topic, sub, s.hookedBatch(consumer, book))
		}
	case "notifications": // durably: the provider is slow, and the broker's queue is not to grow meanwhile
		return each(s.consumer.AddHandler, s.notify)
	case "history": // in the order of each order's key: that is what a history is
		return each(s.ordered.AddHandler, record)
	case "tracking": // the newest version: a message has the whole state, so an older one is of no use
		return each(s.newest.AddHandler, track)
	}
	panic("service: no handler of " + consumer)
}

// addHandler is a method of once.Consumer.
type addHandler func(
	router *message.Router, consumer, topic string, sub message.Subscriber, handle once.HandlerFunc,
) *message.Handler

// addConsumers subscribes every consumer. When it returns their queues are
// there: an event that finds no queue would have to wait.
func (s *Service) addConsumers() error {
	for _, to := range Subscriptions() {
		subscriber, err := s.transport.Subscriber(to)
		if err != nil {
			return fmt.Errorf("service: subscribe %s to %s: %w", to.Consumer, to.Topic, err)
		}
		s.adds(to.Consumer)(to, subscriber)
	}
	return nil
}
