package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// handlers is the type of a function that adds handlers for the queue of a scene to a
// router.
type handlers func(s *scene, router *message.Router) error

// newConsumerScene returns a scene with the tables that the handlers write to.
func (b *bench) newConsumerScene(ctx context.Context, kind string) (*scene, error) {
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return nil, err
	}
	if err := s.exec(ctx, createOrders, createNaive); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// consumed returns how many messages per second are handled by the handlers that the
// parameter consume adds. It returns an error if their effects are not the expected
// effects.
func (b *bench) consumed(ctx context.Context, messages int, consume handlers, effects effects) (_ float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	took, err := s.consume(ctx, newMessages(messages), consume)
	if err != nil {
		return 0, err
	}
	return rate(messages, took), s.hasEffects(ctx, effects)
}

// consume publishes the messages, and then handles them with the handlers that the
// parameter consume adds. It measures from the first call of a handler until the last
// message is handled: its transaction has ended, and its ack was sent.
func (s *scene) consume(ctx context.Context, messages []*message.Message, consume handlers) (took time.Duration, err error) {
	if err := s.queue.publish(ctx, messages); err != nil {
		return 0, err
	}
	if err := s.exec(ctx, `CHECKPOINT`); err != nil {
		return 0, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	p := newProgress(len(messages))
	router.AddMiddleware(p.middleware)
	if err := consume(s, router); err != nil {
		return 0, errors.Join(err, router.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	err = p.await(ctx, ended)
	if err = errors.Join(err, router.Close()); err != nil {
		return 0, err
	}
	return p.last.Sub(p.first), nil
}

// progress records which messages were handled. It counts a message only once, even if
// a duplicate of the message was handled, too.
type progress struct {
	target  int
	reached chan struct{}

	mu          sync.Mutex
	ids         map[string]struct{}
	first, last time.Time
	failure     error
}

func newProgress(target int) *progress {
	return &progress{target: target, reached: make(chan struct{}), ids: make(map[string]struct{}, target)}
}

func (p *progress) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		p.begin()
		id := msg.UUID
		produced, err := h(msg)
		p.end(id, err)
		return produced, err
	}
}

func (p *progress) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first.IsZero() {
		p.first = time.Now()
	}
}

func (p *progress) end(id string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ids) == p.target || p.failure != nil {
		return
	}
	if err != nil {
		p.failure = err
		close(p.reached)
		return
	}
	p.ids[id] = struct{}{}
	if len(p.ids) == p.target {
		p.last = time.Now()
		close(p.reached)
	}
}

// await waits until all messages were handled. It returns an error if a message was
// nacked.
func (p *progress) await(ctx context.Context, ended <-chan error) error {
	patience := time.NewTimer(stockPatience)
	defer patience.Stop()
	select {
	case <-p.reached:
		return p.failure
	case err := <-ended:
		return errors.Join(errors.New("the router ended"), err, ctx.Err())
	case <-patience.C:
		p.mu.Lock()
		defer p.mu.Unlock()
		return fmt.Errorf("%d of %d messages were handled within %v", len(p.ids), p.target, stockPatience)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// effects contains the expected numbers of rows after all messages were consumed.
type effects struct {
	orders, inbox, naive, quarantined, waiting int
}

// hasEffects returns an error unless the numbers of rows are as expected. Without this
// check, a rate could be high because messages were lost.
func (s *scene) hasEffects(ctx context.Context, want effects) error {
	var got effects
	err := s.db.QueryRowContext(ctx, `
		SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM once_inbox), (SELECT count(*) FROM naive),
		       (SELECT count(*) FROM once_parked WHERE state = 'quarantined'),
		       (SELECT count(*) FROM once_parked WHERE state = 'waiting')`).
		Scan(&got.orders, &got.inbox, &got.naive, &got.quarantined, &got.waiting)
	if err == nil && got != want {
		err = fmt.Errorf("the effects of the messages are %+v, not %+v", got, want)
	}
	return err
}
