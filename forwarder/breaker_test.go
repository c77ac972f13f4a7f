package forwarder_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// breaker is a broker whose channel is closed by some messages. Whatever is in
// flight then is of unknown outcome; only of a message that was alone does it
// say that it was the one.
type breaker struct {
	*broker

	culprit func(id string) bool

	mu     sync.Mutex
	flight []flight
	tick   *time.Timer
}

type flight struct {
	d    delivery
	done func(error)
}

func newBreaker(t *testing.T, culprit func(id string) bool) *breaker {
	b := &breaker{broker: newBroker(), culprit: culprit}
	b.tick = time.AfterFunc(time.Hour, b.confirm)
	t.Cleanup(func() { b.tick.Stop() })
	return b
}

// PublishAsync lets messages gather for a while before they are answered.
func (b *breaker) PublishAsync(topic string, msg *message.Message, done func(error)) {
	d, _ := b.arrive(topic, msg)
	b.mu.Lock()
	b.flight = append(b.flight, flight{d, done})
	b.mu.Unlock()
	if !b.culprit(d.id) {
		b.tick.Reset(2 * time.Millisecond)
		return
	}
	all := b.take()
	for _, f := range all {
		var err error = unsure{errors.New("channel closed")}
		if len(all) == 1 {
			err = hopeless{errors.New("channel closed")}
		}
		b.leave(f.d, err)
		f.done(err)
	}
}

func (b *breaker) confirm() {
	for _, f := range b.take() {
		b.leave(f.d, nil)
		f.done(nil)
	}
}

func (b *breaker) take() []flight {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.flight
	b.flight = nil
	return all
}
