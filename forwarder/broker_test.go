package forwarder_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
)

// broker is a publisher that remembers what it stored and can be told how to
// answer.
type broker struct {
	mu       sync.Mutex
	answer   func(d delivery) error // nil stores; called without the lock
	stored   []delivery
	attempts map[string]int
	wire     map[string]int // in flight by ordering key
	most     int            // in flight at a time, in all
	flying   int
	overlaps []string // keys of which more than one was in flight
	changed  chan struct{}
}

// delivery is a message on its way.
type delivery struct {
	id, topic, key string
	attempt        int // of this id, from 1
	payload        string
	metadata       message.Metadata
}

func newBroker() *broker {
	return &broker{attempts: map[string]int{}, wire: map[string]int{}, changed: make(chan struct{}, 1)}
}

// answering returns the broker with answers given by answer.
func (b *broker) answering(answer func(d delivery) error) *broker {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = answer
	return b
}

func (b *broker) arrive(topic string, msg *message.Message) (delivery, func(d delivery) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts[msg.UUID]++
	d := delivery{
		id: msg.UUID, topic: topic, key: msg.Metadata[outbox.OrderingKey],
		attempt: b.attempts[msg.UUID], payload: string(msg.Payload), metadata: msg.Metadata,
	}
	b.flying++
	b.most = max(b.most, b.flying)
	if d.key != "" {
		b.wire[d.key]++
		if b.wire[d.key] > 1 {
			b.overlaps = append(b.overlaps, d.key)
		}
	}
	return d, b.answer
}

func (b *broker) leave(d delivery, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flying--
	if d.key != "" {
		b.wire[d.key]--
	}
	if err == nil {
		b.stored = append(b.stored, d)
		select {
		case b.changed <- struct{}{}:
		default:
		}
	}
}

// Publish is what an ordinary publisher offers.
func (b *broker) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		d, answer := b.arrive(topic, msg)
		var err error
		if answer != nil {
			err = answer(d)
		}
		b.leave(d, err)
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *broker) Close() error { return nil }

// ids returns what was stored, in order; each id once.
func (b *broker) ids(of func(d delivery) bool) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []string
	seen := map[string]bool{}
	for _, d := range b.stored {
		if !seen[d.id] && (of == nil || of(d)) {
			seen[d.id] = true
			ids = append(ids, d.id)
		}
	}
	return ids
}

func (b *broker) has(ids ...string) bool {
	stored := b.ids(nil)
	for _, id := range ids {
		if !slices.Contains(stored, id) {
			return false
		}
	}
	return true
}

func (b *broker) tries(id string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.attempts[id]
}

// pipelined is a broker that takes messages in order without waiting and
// answers each from a goroutine of its own.
type pipelined struct {
	*broker

	answering sync.WaitGroup
}

func (p *pipelined) PublishAsync(topic string, msg *message.Message, done func(error)) {
	d, answer := p.arrive(topic, msg)
	if answer == nil {
		p.leave(d, nil)
		done(nil)
		return
	}
	p.answering.Go(func() {
		err := answer(d)
		p.leave(d, err)
		done(err)
	})
}

// Errors of a publisher that says what it means.
type refusal struct{ error }

func (refusal) Refused() bool { return true }

type hopeless struct{ error }

func (hopeless) Unacceptable() bool { return true }

type outage struct{ error }

func (outage) Unavailable() bool { return true }

// unsure is what rabbit's errors are when nothing is known.
type unsure struct{ error }

func (unsure) Refused() bool      { return false }
func (unsure) Unacceptable() bool { return false }
func (unsure) Unavailable() bool  { return false }

// patience is for a machine that has other things to do, and less than the
// minute after which a forwarder reads everything again.
const patience = 45 * time.Second

// eventually waits until condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	testkit.Eventually(t, patience, what, condition)
}
