package service

import (
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// The names of the two services. One process can run both, with one database. Or each
// service runs alone, with its own database, and RabbitMQ carries the events between
// them.
const (
	Orders   = "orders"   // takes orders, and delivers them
	Payments = "payments" // moves money, and tells the customers about it
)

// Subscription is a consumer's subscription to a topic.
type Subscription struct {
	Service  string // the service that runs the consumer
	Consumer string // the inbox stores message ids under this name, so never change it
	Topic    string

	InFlight int  // maximum number of messages that are received and not acked
	InOrder  bool // only one instance receives at a time
}

// Subscriptions returns the subscriptions of the given services. Without arguments, it
// returns all subscriptions.
func Subscriptions(services ...string) []Subscription {
	all := []Subscription{
		{Service: Payments, Consumer: "payments", Topic: TopicOrdersPlaced, InFlight: inFlight},
		{Service: Orders, Consumer: "inventory", Topic: TopicPaymentsCaptured, InFlight: inFlight},
		{Service: Orders, Consumer: "shipping", Topic: TopicStockReserved, InFlight: 2 * batchSize},
		{Service: Orders, Consumer: "revenue", Topic: TopicStockReserved, InFlight: 2 * batchSize},
		{Service: Payments, Consumer: "refunds", Topic: TopicStockRefused, InFlight: inFlight},
		{Service: Orders, Consumer: "cancellations", Topic: TopicPaymentsRefunded, InFlight: inFlight},
		{Service: Payments, Consumer: "notifications", Topic: TopicMailsIntended, InFlight: 2 * batchSize},
		{Service: Orders, Consumer: "history", Topic: TopicOrdersChanged, InFlight: inFlight, InOrder: true},
		{Service: Orders, Consumer: "tracking", Topic: TopicOrdersChanged, InFlight: inFlight},
	}
	return slices.DeleteFunc(all, func(s Subscription) bool {
		return len(services) > 0 && !slices.Contains(services, s.Service)
	})
}

// adder returns the function that adds the handler of a consumer to the router. The
// returned function also decides how the handler gets its messages: one by one, in
// batches, or in the order of their keys or versions.
func (s *Service) adder(consumer string) func(to Subscription, sub message.Subscriber) {
	each := func(add addHandler, handle once.HandlerFunc) func(Subscription, message.Subscriber) {
		if s.hooks.Handler != nil {
			handle = s.hooks.Handler(consumer, handle)
		}
		return func(to Subscription, sub message.Subscriber) { add(s.router, to.Consumer, to.Topic, sub, handle) }
	}
	switch consumer {
	case "payments": // one message at a time, because the rest of the saga waits for the payment
		return each(s.consumer.AddHandler, s.capturePayment)
	case "inventory": // one message at a time, because the handler often fails, and would make its whole batch fail
		return each(s.consumer.AddHandler, reserveStock)
	case "shipping": // in batches, because the write is small, and most of the time is spent in the commit
		return each(s.consumer.AddHandlerInBatches, ship)
	case "revenue": // one call for each batch, because one statement writes all rows
		return func(to Subscription, sub message.Subscriber) {
			s.consumer.AddBatchHandler(s.router, to.Consumer, to.Topic, sub, s.hookedBatch(consumer, book))
		}
	case "refunds": // one message at a time, because it calls the bank
		return each(s.consumer.AddHandler, s.refund)
	case "cancellations": // one message at a time: there are few of them
		return each(s.consumer.AddHandler, cancelOrder)
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

// addConsumers adds the consumers of this service to the router, and creates their
// queues. The broker refuses an event that no queue receives, so the queues must exist
// before the first event is sent.
func (s *Service) addConsumers() error {
	for _, to := range Subscriptions(s.services...) {
		subscriber, err := s.transport.Subscriber(to)
		if err != nil {
			return fmt.Errorf("service: subscribe %s to %s: %w", to.Consumer, to.Topic, err)
		}
		s.adder(to.Consumer)(to, subscriber)
	}
	return nil
}
