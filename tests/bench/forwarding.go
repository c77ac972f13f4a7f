package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/rabbit"
)

// newPublisher returns a rabbit.Publisher with its defaults. It publishes one message, so
// that the publisher is connected when a measurement begins.
func newPublisher(config wamqp.Config, topic string) (*rabbit.Publisher, error) {
	config.Marshaler = rabbit.Marshaler{}
	p, err := rabbit.NewPublisher(config, rabbit.PublisherConfig{})
	if err != nil {
		return nil, err
	}
	if err := p.Publish(topic, newMessage()); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// forwarding is a forwarder with its defaults, and a count of its confirmed messages.
type forwarding struct {
	fwd       *forwarder.Forwarder
	publisher *counted
	started   bool
	ended     chan error
}

// forward returns a forwarding that is not started yet. target is the
// number of confirmed messages for which its method await waits.
func forward(db *sql.DB, config wamqp.Config, topic string, target int) (*forwarding, error) {
	publisher, err := newPublisher(config, topic)
	if err != nil {
		return nil, err
	}
	f := &forwarding{
		publisher: &counted{Publisher: publisher, target: int64(target), reached: make(chan struct{})},
		ended:     make(chan error, 1),
	}
	if f.fwd, err = forwarder.New(db, f.publisher, forwarder.Config{}); err != nil {
		return nil, errors.Join(err, publisher.Close())
	}
	return f, nil
}

func (s *scene) forward(target int) (*forwarding, error) {
	return forward(s.db.DB, s.queue.config(), s.queue.name, target)
}

func (f *forwarding) start(ctx context.Context) {
	f.started = true
	go func() { f.ended <- f.fwd.Run(ctx) }()
}

// await returns when the target number of messages was confirmed.
func (f *forwarding) await(ctx context.Context) error {
	select {
	case <-f.publisher.reached:
		return nil
	case err := <-f.ended:
		f.ended <- err
		return errors.Join(errors.New("the forwarder ended"), err, ctx.Err())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop closes the forwarder. Before the forwarder ends, it deletes all confirmed
// messages.
func (f *forwarding) stop() error { return f.fwd.Close() }

func (f *forwarding) Close() error {
	err := f.fwd.Close()
	if f.started {
		err = errors.Join(err, <-f.ended)
	}
	if failure := f.publisher.failure.Load(); failure != nil {
		err = errors.Join(err, fmt.Errorf("publishing: %w", *failure))
	}
	return errors.Join(err, f.publisher.Close())
}

// counted counts confirmed messages, and records the times of the first publish and of
// the confirm that reaches the target.
type counted struct {
	*rabbit.Publisher

	target    int64
	confirmed atomic.Int64
	failure   atomic.Pointer[error]
	first     time.Time // needs no lock, because the forwarder publishes from one goroutine
	last      time.Time // set before reached is closed
	reached   chan struct{}
}

// PublishUnordered is the method that the forwarder calls.
func (p *counted) PublishUnordered(topic string, msg *message.Message, done func(error)) {
	if p.first.IsZero() {
		p.first = time.Now()
	}
	p.Publisher.PublishUnordered(topic, msg, func(err error) {
		if err != nil {
			p.failure.CompareAndSwap(nil, &err)
		} else if p.confirmed.Add(1) == p.target {
			p.last = time.Now()
			close(p.reached)
		}
		done(err)
	})
}

func rate(messages int, took time.Duration) float64 { return float64(messages) / took.Seconds() }

// streamParts decides how many messages keepAhead writes in one transaction. If keepAhead
// must keep 2,000 messages waiting, a transaction writes 2,000/streamParts messages.
const streamParts = 20

// stream writes messages to the outbox during a measurement.
type stream struct {
	once    sync.Once
	stop    chan struct{}
	ended   chan struct{}
	err     error // err and starved are set before ended is closed
	starved int   // number of checks that found no waiting message
}

// keepAhead starts a goroutine that writes new messages whenever fewer messages than
// ahead wait in the outbox. The caller must have stored this number of
// messages before. confirmed is a function that returns the number of
// messages that were confirmed so far.
func (s *scene) keepAhead(ctx context.Context, ahead int, confirmed func() int64) *stream {
	st := &stream{stop: make(chan struct{}), ended: make(chan struct{})}
	batch := max(1, ahead/streamParts)
	go func() {
		defer close(st.ended)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for written := ahead; ; {
			waiting := written - int(confirmed())
			if waiting <= 0 {
				st.starved++
			}
			if waiting < ahead {
				if st.err = s.add(ctx, batch, 0); st.err != nil {
					return
				}
				written += batch
			}
			if waiting > ahead-batch {
				<-tick.C
			}
			select {
			case <-st.stop:
				return
			default:
			}
		}
	}()
	return st
}

func (st *stream) Close() error {
	st.once.Do(func() { close(st.stop) })
	<-st.ended
	return st.err
}
