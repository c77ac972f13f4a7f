package testkit

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Subscriber is a subscriber for tests. A test sends messages to the channel Messages,
// and Subscriber delivers them to its subscription. It can have only one subscription,
// and does not limit the number of messages in flight.
type Subscriber struct {
	Messages chan *message.Message

	closeOnce sync.Once
}

// NewSubscriber returns a Subscriber.
func NewSubscriber() *Subscriber { return &Subscriber{Messages: make(chan *message.Message)} }

// Subscribe returns the channel Messages. The subscription also ends when ctx ends,
// because a router that is closed always cancels ctx, but does not always call Close.
func (s *Subscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return s.Messages, nil
}

// Close closes the channel Messages.
func (s *Subscriber) Close() error {
	s.closeOnce.Do(func() { close(s.Messages) })
	return nil
}
