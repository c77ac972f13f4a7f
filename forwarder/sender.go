package forwarder

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/telemetry"
	"github.com/watermill-once/once/internal/usercode"
)

// AsyncPublisher is a publisher that does not wait for the confirm of a message.
// PublishAsync takes one message and returns. Later the publisher calls the function
// done exactly once, from any goroutine, with the error that Publish would return.
// PublishAsync may block for a while to limit the number of unconfirmed messages.
//
// If a publisher also has the method PublishUnordered, as rabbit.Publisher has, the forwarder calls
// this method instead. A type that embeds a rabbit.Publisher and overrides PublishAsync must
// override both.
type AsyncPublisher interface {
	PublishAsync(topic string, msg *message.Message, done func(error))
}

// unorderedPublisher sends cheaper if the order does not matter, for example over several channels.
type unorderedPublisher interface {
	PublishUnordered(topic string, msg *message.Message, done func(error))
}

// checker knows in advance which messages it cannot send, and returns an error for them.
type checker interface {
	Check(topic string, msg *message.Message) error
}

// errNotSent means that the publisher did not get the message.
var errNotSent = errors.New("forwarder: not sent")

type sender struct {
	publisher message.Publisher
	checker   checker    // the publisher if it has the method Check, or nil
	orders    chan order // has space for the whole window, so that the loop never waits
	results   results
	tracer    *telemetry.Tracer // nil if no spans are recorded
	system    telemetry.System

	// A message is sent only while gate is true and the lease has not ended.
	gate  atomic.Bool
	lease atomic.Int64 // end of the lease, in nanoseconds since begun
	begun time.Time
}

type order struct {
	dispatch.Publish

	at    time.Time  // time of the command
	stamp string     // the time in the field at, formatted by meta.Stamp; the orders of one command share the string
	span  trace.Span // nil if no span is recorded
}

func newSender(publisher message.Publisher, window int) *sender {
	known, _ := publisher.(checker)
	return &sender{
		publisher: publisher,
		checker:   known,
		system:    telemetry.SystemOf(publisher),
		orders:    make(chan order, window),
		results:   results{some: make(chan struct{}, 1)},
		begun:     time.Now(),
	}
}

// The goroutines end when the channel orders is closed.
func (s *sender) start(workers int) {
	publish := s.publish
	if async, ok := s.publisher.(AsyncPublisher); ok {
		workers, publish = 1, async.PublishAsync
	}
	if async, ok := s.publisher.(unorderedPublisher); ok { // a key has one unconfirmed message, so its order is kept
		workers, publish = 1, async.PublishUnordered
	}
	for range workers {
		go s.work(publish)
	}
}

func (s *sender) work(publish func(string, *message.Message, func(error))) {
	closed := false
	defer func() {
		if !closed { // the publisher has ended this goroutine with runtime.Goexit
			go s.work(publish)
		}
	}()
	for o := range s.orders {
		s.run(o, publish)
	}
	closed = true
}

func (s *sender) leaseUntil(deadline time.Time) { s.lease.Store(int64(deadline.Sub(s.begun))) }

func (s *sender) run(o order, publish func(string, *message.Message, func(error))) {
	if !s.gate.Load() || int64(time.Since(s.begun)) >= s.lease.Load() {
		s.results.add(result{o, errNotSent})
		return
	}
	metadata, err := check(o.Message)
	if err != nil {
		s.results.add(result{o, err})
		return
	}
	msg := message.NewMessage(o.Message.ID, o.Message.Payload)
	msg.Metadata = metadata
	err = usercode.ErrExited // stays if the publisher ends this goroutine
	defer func() {
		if err != nil {
			s.results.add(result{o, fmt.Errorf("forwarder: the publisher failed: %w", err)})
		}
	}()
	err = usercode.Guarded(func() error { s.pass(&o, msg, publish); return nil })
}

// pass passes a message to the publisher, unless checker refuses it.
func (s *sender) pass(o *order, msg *message.Message, publish func(string, *message.Message, func(error))) {
	if s.checker != nil {
		if err := usercode.Guard(s.checker.Check(o.Message.Topic, msg)); err != nil {
			s.results.add(result{*o, rowError{"the publisher cannot send this message", err}})
			return
		}
	}
	msg.Metadata[meta.CreatedAt], msg.Metadata[meta.PublishedAt] = o.Message.Created, o.stamp
	o.span = s.begin(o.Message, msg)
	failpoint.Hit("forwarder/publish")
	publish(o.Message.Topic, msg, func(err error) {
		failpoint.Hit("forwarder/answered")
		s.results.add(result{*o, usercode.Guard(err)})
	})
	failpoint.Hit("forwarder/handed-over")
}

func (s *sender) publish(topic string, msg *message.Message, done func(error)) {
	done(s.publisher.Publish(topic, msg))
}

type result struct {
	order

	err error
}

// results collects results for the loop. Adding one never waits for the loop.
type results struct {
	mu   sync.Mutex
	list []result
	some chan struct{} // contains an element when the list is not empty
}

func (rs *results) add(r result) {
	rs.mu.Lock()
	rs.list = append(rs.list, r)
	first := len(rs.list) == 1
	rs.mu.Unlock()
	if first {
		select {
		case rs.some <- struct{}{}:
		default:
		}
	}
}

// take returns all results, and removes them. The memory of scratch, or nil, is used again.
func (rs *results) take(scratch []result) []result {
	clear(scratch)
	rs.mu.Lock()
	defer rs.mu.Unlock()
	list := rs.list
	rs.list = scratch[:0]
	return list
}

// rowError means that a row contains data that the outbox would not write, or that cannot be sent.
type rowError struct {
	what string
	err  error // the cause, or nil
}

func (e rowError) Error() string {
	if e.err == nil {
		return "forwarder: " + e.what
	}
	return fmt.Sprintf("forwarder: %s: %v", e.what, e.err)
}
func (e rowError) Unwrap() error    { return e.err }
func (rowError) Unacceptable() bool { return true }

// check returns the metadata of a message, or an error if it cannot be sent. All strings must be
// valid UTF-8 without NUL: a text column of SQLite accepts any bytes, but a list of ids in a
// statement does not, so the row could not be deleted after it was sent.
func check(m *dispatch.Message) (message.Metadata, error) {
	for _, field := range []struct{ name, text string }{
		{"message_id", m.ID}, {"topic", m.Topic}, {"ordering_key", m.Key},
	} {
		if !utf8.ValidString(field.text) || strings.IndexByte(field.text, 0) >= 0 {
			return nil, rowError{what: field.name + " is not valid text"}
		}
	}
	metadata, err := outboxrow.DecodeMetadata(m.Metadata)
	if err != nil {
		return nil, rowError{"metadata is not an object of strings", err}
	}
	return metadata, nil
}
