package forwarder_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// breaker is a broker that closes the channel when it gets certain messages. All
// messages in flight at that time have an unknown outcome. A message that was in flight
// by itself is reported as the one that closed the channel.
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

// PublishAsync collects messages for a while before it confirms them.
func (b *breaker) PublishAsync(topic string, msg *message.Message, done func(error)) {
	d, _ := b.arrive(topic, msg)
	all := b.add(flight{d, done})
	for _, f := range all {
		var err error = unsure{errors.New("channel closed")}
		if len(all) == 1 {
			err = hopeless{errors.New("channel closed")}
		}
		b.leave(f.d, err)
		f.done(err)
	}
}

// add puts f in flight. If one of the messages in flight closes the channel, add returns
// all of them. A message that would close the channel, but was not published by itself
// yet, waits until another message is in flight, so that the outcome does not depend on
// timing.
func (b *breaker) add(f flight) (closed []flight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flight = append(b.flight, f)
	switch {
	case !b.closes():
		b.tick.Reset(2 * time.Millisecond)
		return nil
	case len(b.flight) == 1 && f.d.attempt == 1:
		return nil
	}
	closed, b.flight = b.flight, nil
	return closed
}

func (b *breaker) closes() bool {
	return slices.ContainsFunc(b.flight, func(f flight) bool { return b.culprit(f.d.id) })
}

func (b *breaker) confirm() {
	for _, f := range b.confirmed() {
		b.leave(f.d, nil)
		f.done(nil)
	}
}

func (b *breaker) confirmed() (all []flight) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closes() {
		return nil
	}
	all, b.flight = b.flight, nil
	return all
}
