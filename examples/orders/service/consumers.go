package service

import (
	"fmt"

	"github.com/watermill-once/once"
)

// Subscription says who consumes what.
type Subscription struct {
	Consumer string // what its messages are remembered under: it never changes
	Topic    string
}

// Subscriptions are all that there are.
func Subscriptions() []Subscription {
	return []Subscription{
		{"payments", TopicOrdersPlaced},
		{"inventory", TopicOrdersPlaced},
		{"shipping", TopicPaymentsCaptured},
		{"notifications", TopicPaymentsCaptured},
	}
}

// addConsumers subscribes every consumer. When it returns their queues are
// there: an event that finds no queue would have to wait.
func (s *Service) addConsumers() error {
	handlers := map[string]once.HandlerFunc{
		"payments":      capturePayment,
		"inventory":     reserveStock,
		"shipping":      ship,
		"notifications": s.notify,
	}
	for _, to := range Subscriptions() {
		subscriber, err := s.transport.Subscriber(to)
		if err != nil {
			return fmt.Errorf("service: subscribe %s to %s: %w", to.Consumer, to.Topic, err)
		}
		handle := handlers[to.Consumer]
		if s.hooks.Handler != nil {
			handle = s.hooks.Handler(to.Consumer, handle)
		}
		s.consumer.AddHandler(s.router, to.Consumer, to.Topic, subscriber, handle)
	}
	return nil
}
