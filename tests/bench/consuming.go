package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/rabbit"
)

// handlers is the type of a function that adds handlers for the queue of a scene to a
// router.
type handlers func(s *scene, router *message.Router) error

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

// consume publishes the messages, and then handles them with the handlers that
// consume adds. It measures from the first call of a handler until the last
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
	spent := measureCost(ctx)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	err = p.await(ctx, ended)
	spent(len(messages))
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

// inFlight is the number of messages that are handled at the same time if consumers are
// compared with each other or with pgbench. pgbench has the same number of clients.
const inFlight = 8

// consumerName is the name of the consumer in all measurements.
const consumerName = "bench"

// createNaive creates a minimal inbox, which is a table of ids.
const createNaive = `CREATE TABLE naive (message_id text PRIMARY KEY)`

func (s *scene) subscriber(config rabbit.SubscriberConfig) (*rabbit.Subscriber, error) {
	queue := s.queue.consumed()
	queue.Marshaler = rabbit.Marshaler{}
	return rabbit.NewSubscriber(queue, config)
}

func apart(s *scene, router *message.Router) error {
	return s.handle(router, s.db.DB, func(ctx context.Context, tx *sql.Tx, _ *message.Message) error { return business(ctx, tx) })
}

func naive(s *scene, router *message.Router) error { return s.handle(router, s.db.DB, naively) }

func apartWithPgx(s *scene, router *message.Router) error {
	return s.handle(router, s.db.std, func(ctx context.Context, tx *sql.Tx, _ *message.Message) error { return business(ctx, tx) })
}

func withPq(s *scene) *sql.DB { return s.db.DB }

func withPgx(s *scene) *sql.DB { return s.db.std }

func withLazyPgx(s *scene) *sql.DB { return s.db.lazyStd }

func (s *scene) handle(router *message.Router, db *sql.DB, work func(ctx context.Context, tx *sql.Tx, msg *message.Message) error) error {
	subscriber, err := s.subscriber(rabbit.SubscriberConfig{InFlight: inFlight})
	if err != nil {
		return err
	}
	router.AddConsumerHandler(consumerName, s.queue.name, subscriber, func(msg *message.Message) error {
		return inTx(msg.Context(), db, func(tx *sql.Tx) error { return work(msg.Context(), tx, msg) })
	})
	return nil
}

// naively writes the business row, unless the id of the message is already in the minimal
// inbox.
func naively(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	result, err := tx.ExecContext(ctx, `INSERT INTO naive (message_id) VALUES ($1) ON CONFLICT DO NOTHING`, msg.UUID)
	if err != nil {
		return err
	}
	if fresh, err := result.RowsAffected(); err != nil || fresh == 0 {
		return err
	}
	return business(ctx, tx)
}

func chain(config rabbit.SubscriberConfig) handlers { return chainWith(config, handled) }

func handled(ctx context.Context, tx *sql.Tx, _ *message.Message) ([]*message.Message, error) {
	return nil, business(ctx, tx)
}

func chainWith(config rabbit.SubscriberConfig, handle once.HandlerFunc) handlers {
	return chainOn(withPq, config, handle)
}

func lazyChain(config rabbit.SubscriberConfig) handlers {
	return chainOn(func(s *scene) *sql.DB { return s.db.lazy }, config, handled)
}

// keepsTwo lets the pool keep only two idle connections, as database/sql does by default.
// It returns the pool.
func keepsTwo(s *scene) *sql.DB {
	s.db.SetMaxIdleConns(2)
	return s.db.DB
}

func chainOn(pool func(s *scene) *sql.DB, config rabbit.SubscriberConfig, handle once.HandlerFunc) handlers {
	return func(s *scene, router *message.Router) error {
		subscriber, err := s.subscriber(config)
		if err != nil {
			return err
		}
		consumer, err := once.NewConsumer(pool(s), once.ConsumerConfig{})
		if err != nil {
			return err
		}
		consumer.AddHandler(router, consumerName, s.queue.name, subscriber, handle)
		return nil
	}
}

// stock returns handlers that use the subscriber of watermill-amqp with its defaults.
// Each subscription has one message in flight.
func stock(subscriptions int) handlers {
	return func(s *scene, router *message.Router) error {
		subscriber, err := wamqp.NewSubscriber(s.queue.consumed(), watermill.NopLogger{})
		if err != nil {
			return err
		}
		for n := range subscriptions {
			router.AddConsumerHandler(fmt.Sprintf("bench-%d", n), s.queue.name, subscriber, func(msg *message.Message) error {
				return inTx(msg.Context(), s.db.DB, func(tx *sql.Tx) error { return naively(msg.Context(), tx, msg) })
			})
		}
		return nil
	}
}
