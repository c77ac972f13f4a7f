package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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

// forward returns a forwarding that is not started yet. The parameter target is the
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

// Close closes the forwarder and the publisher. It returns an error if a publish has
// failed.
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

func (p *counted) PublishAsync(topic string, msg *message.Message, done func(error)) {
	if p.first.IsZero() {
		p.first = time.Now()
	}
	p.Publisher.PublishAsync(topic, msg, func(err error) {
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
