package forwarder_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// quick returns a configuration with short pauses.
func quick(config schema.Config) forwarder.Config {
	return forwarder.Config{
		Schema:       config,
		PollMax:      20 * time.Millisecond,
		Backoff:      func(int) time.Duration { return 5 * time.Millisecond },
		CloseTimeout: patience,
	}
}

// start starts a forwarder that runs until the test ends.
func start(t *testing.T, db *sql.DB, publisher message.Publisher, config forwarder.Config) *forwarder.Forwarder {
	t.Helper()
	f, err := forwarder.New(db, publisher, config)
	kit.OK(t, err)
	run(t, f)
	return f
}

func run(t *testing.T, f *forwarder.Forwarder) {
	t.Helper()
	ended := kit.Go(func() error { return f.Run(context.Background()) })
	t.Cleanup(func() {
		kit.OK(t, f.Close())
		kit.OK(t, <-ended)
	})
	select {
	case <-f.Running():
	case err := <-ended:
		ended <- err
		kit.OK(t, err)
	case <-time.After(patience):
		t.Fatal("does not run")
	}
}

// msg returns a message. It has an ordering key unless key is empty.
func msg(id, key string) *message.Message {
	m := message.NewMessage(id, []byte("payload of "+id))
	if key != "" {
		outbox.SetOrderingKey(m, key)
	}
	return m
}

// put writes messages to the outbox and commits them.
func put(t *testing.T, db *sql.DB, config schema.Config, topic string, msgs ...*message.Message) {
	t.Helper()
	box, err := outbox.New(outbox.Config{Schema: config})
	kit.OK(t, err)
	kit.OK(t, box.InTx(t.Context(), db, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(topic, msgs...)
	}))
}

// count runs a query that returns one number.
func count(t *testing.T, db *sql.DB, query string, args ...any) int {
	t.Helper()
	n := kit.One[int](t, db, query, args...)
	return n
}

func pending(t *testing.T, db *sql.DB) int {
	t.Helper()
	return count(t, db, `SELECT COUNT(*) FROM once_outbox`)
}

// drained waits until the outbox is empty.
func drained(t *testing.T, db *sql.DB) {
	t.Helper()
	eventually(t, "the outbox is empty", func() bool { return pending(t, db) == 0 })
}

// exec runs a statement on the database.
func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	kit.Exec(t, db, query, args...)
}

// slack is added to promised times in tests, because the machine may be busy.
const slack = 30 * time.Second

// takeTime waits for d, to simulate a slow broker or a slow writer. It is not used to
// wait for an event.
func takeTime(d time.Duration) { <-time.After(d) }

// giveTime waits for d, so that a forwarder can continue, or could do something wrong.
// The test does not fail if d is too short.
func giveTime(d time.Duration) { <-time.After(d) }

func isSQLite(t *testing.T, db *sql.DB) bool {
	t.Helper()
	return strings.Contains(fmt.Sprintf("%T", db.Driver()), "sqlite")
}

// now returns an SQL expression for the current time of the database's clock, as a
// value for the tables.
func now(t *testing.T, db *sql.DB) string {
	t.Helper()
	if isSQLite(t, db) {
		return `CAST(unixepoch('subsec') * 1000 AS INTEGER)`
	}
	return `now()`
}

func encoded(t *testing.T, metadata message.Metadata) string {
	t.Helper()
	text, err := json.Marshal(metadata)
	kit.OK(t, err)
	return string(text)
}

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
	kit.Eventually(t, patience, what, condition)
}

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

// triedTimes ends the test unless the broker got the message so many times.
func (b *broker) triedTimes(t *testing.T, id string, want int) {
	t.Helper()
	if got := b.tries(id); got != want {
		t.Fatalf("%q is tried %d times, want %d", id, got, want)
	}
}
