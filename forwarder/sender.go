package forwarder

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/telemetry"
)

// AsyncPublisher is what a publisher may offer beyond message.Publisher:
// PublishAsync hands one message over and returns; done is called once, from
// any goroutine, with what Publish would have returned. It may block for a
// while to keep what is outstanding bounded.
type AsyncPublisher interface {
	PublishAsync(topic string, msg *message.Message, done func(error))
}

// errNotSent says that a message never reached the publisher.
var errNotSent = errors.New("forwarder: not sent")

// sender hands rows to the publisher and collects the answers.
type sender struct {
	publisher message.Publisher
	orders    chan order // room for the whole window: giving an order never waits
	answers   answers
	tracer    *telemetry.Tracer // nil if nobody records spans

	// A message leaves while the gate is open and the lease holds.
	gate  atomic.Bool
	lease atomic.Int64 // nanoseconds on the clock of begun
	begun time.Time
}

// order is a row to be published.
type order struct {
	row    *row
	ticket uint64
	span   trace.Span // nil if there is none
}

func newSender(publisher message.Publisher, window int) *sender {
	return &sender{
		publisher: publisher,
		orders:    make(chan order, window),
		answers:   answers{some: make(chan struct{}, 1)},
		begun:     time.Now(),
	}
}

// start begins to carry out orders, until the channel is closed.
func (s *sender) start(workers int) {
	publish := s.publish
	if async, ok := s.publisher.(AsyncPublisher); ok {
		workers, publish = 1, async.PublishAsync
	}
	for range workers {
		go func() {
			for o := range s.orders {
				s.carryOut(o, publish)
			}
		}()
	}
}

func (s *sender) leaseUntil(deadline time.Time) { s.lease.Store(int64(deadline.Sub(s.begun))) }

func (s *sender) carryOut(o order, publish func(string, *message.Message, func(error))) {
	if !s.gate.Load() || int64(time.Since(s.begun)) >= s.lease.Load() {
		s.answers.add(answer{o, errNotSent})
		return
	}
	metadata, err := o.row.check()
	if err != nil {
		s.answers.add(answer{o, err})
		return
	}
	msg := message.NewMessage(o.row.id, o.row.payload)
	msg.Metadata = metadata
	o.span = begin(s.tracer, o.row, msg)
	defer func() {
		if value := recover(); value != nil {
			s.answers.add(answer{o, fmt.Errorf("forwarder: the publisher panicked: %v", value)})
		}
	}()
	failpoint.Hit("forwarder/publish")
	publish(o.row.topic, msg, func(err error) {
		failpoint.Hit("forwarder/answered")
		s.answers.add(answer{o, err})
	})
	failpoint.Hit("forwarder/handed-over")
}

// publish makes an ordinary publisher's Publish look like PublishAsync.
func (s *sender) publish(topic string, msg *message.Message, done func(error)) {
	done(s.publisher.Publish(topic, msg))
}

// answer is what became of an order.
type answer struct {
	order

	err error
}

// answers collects answers for the loop without ever making a publisher wait.
type answers struct {
	mu   sync.Mutex
	list []answer
	some chan struct{} // has an element when there are any
}

func (a *answers) add(one answer) {
	a.mu.Lock()
	a.list = append(a.list, one)
	first := len(a.list) == 1
	a.mu.Unlock()
	if first {
		select {
		case a.some <- struct{}{}:
		default:
		}
	}
}

// take returns all answers. used is a slice that is no longer needed.
func (a *answers) take(used []answer) []answer {
	clear(used)
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.list
	a.list = used[:0]
	return list
}
