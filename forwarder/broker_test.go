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

// broker is a publisher that records which messages it stored. Its answer to each
// message can be set.
type broker struct {
	mu       sync.Mutex
	answer   func(d delivery) error // nil stores every message; called without the lock
	stored   []delivery
	attempts map[string]int
	wire     map[string]int // number of messages in flight for each ordering key
	most     int            // highest number of messages in flight at the same time
	flying   int
	overlaps []string // keys that had more than one message in flight
	changed  chan struct{}
}

// delivery is one publish of a message.
type delivery struct {
	id, topic, key string
	attempt        int // number of this publish of the message, from 1
	payload        string
	metadata       message.Metadata
}

func newBroker() *broker {
	return &broker{attempts: map[string]int{}, wire: map[string]int{}, changed: make(chan struct{}, 1)}
}

// answering sets the function that decides the result of each publish.
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

// Publish is the blocking method of message.Publisher.
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

// ids returns the ids of the stored messages for which match returns true, in order. Each
// id is listed once. If match is nil, all messages match.
func (b *broker) ids(match func(d delivery) bool) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []string
	seen := map[string]bool{}
	for _, d := range b.stored {
		if !seen[d.id] && (match == nil || match(d)) {
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

// pipelined is a broker with PublishAsync. It takes messages in order without waiting
// and confirms each message from its own goroutine.
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

// Each of the following errors has a method that states the outcome of a publish.
type refusal struct{ error }

func (refusal) Refused() bool { return true }

type hopeless struct{ error }

func (hopeless) Unacceptable() bool { return true }

type outage struct{ error }

func (outage) Unavailable() bool { return true }

// unsure is an error like the errors of package rabbit for an unknown outcome.
type unsure struct{ error }

func (unsure) Refused() bool      { return false }
func (unsure) Unacceptable() bool { return false }
func (unsure) Unavailable() bool  { return false }

// patience is how long a test waits. It is long enough for a busy machine, and shorter
// than the minute after which a forwarder reads the whole outbox again.
const patience = 45 * time.Second

// eventually waits until condition returns true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	testkit.Eventually(t, patience, what, condition)
}
