package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/durable"
	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
)

const (
	fewMessages = 10
	many, few   = "many", "few" // names of the large and the small tenant
)

// fairness measures how long a few messages of one tenant take, both without other messages and
// while a million messages of another tenant wait.
func (b *bench) fairness(ctx context.Context) ([]row, error) {
	alone := series{
		id: "fair-alone", unit: milliseconds,
		what: fmt.Sprintf("%d messages of a tenant, through a durable consumer, nothing waiting", fewMessages),
	}
	busy := series{id: "fair-busy", unit: milliseconds, what: fmt.Sprintf("the same while another tenant has %d waiting", b.backlog)}
	one := series{id: "tenants-one", unit: perSecond, what: "all messages of one tenant, through a durable consumer"}
	each := series{id: "tenants-each", unit: perSecond, what: fmt.Sprintf("the same, each of one of %d tenants", b.consume)}
	limited := series{
		id: "tenants-limited", unit: perSecond,
		what: fmt.Sprintf("messages of %d tenants, at most %d at once of each, three instances, handlers that wait",
			limitedTenants, limitedAtOnce),
	}
	crowded := series{id: "tenants-crowded", unit: perSecond, what: "the same while a further tenant has as many waiting as all of them"}
	err := b.turns(
		ctx,
		single(&limited, func(ctx context.Context) (float64, error) { return b.limited(ctx, 0) }),
		single(&crowded, func(ctx context.Context) (float64, error) { return b.limited(ctx, b.consume) }),
		single(&one, func(ctx context.Context) (float64, error) { return b.tenants(ctx, 1) }),
		single(&each, func(ctx context.Context) (float64, error) { return b.tenants(ctx, b.consume) }),
		single(&alone, func(ctx context.Context) (float64, error) { return b.fair(ctx, 0) }),
		single(&busy, func(ctx context.Context) (float64, error) { return b.fair(ctx, b.backlog) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{alone.row(), busy.againstAtMost(alone, 3), one.row(), each.against(one, 0), limited.row(), crowded.against(limited, 0.9)}, nil
}

func (b *bench) tenants(ctx context.Context, tenants int) (_ float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	messages := newMessages(b.consume)
	for n, msg := range messages {
		outbox.SetTenant(msg, strconv.Itoa(n%tenants))
	}
	took, err := s.consume(ctx, messages, storedFirst)
	if err != nil {
		return 0, err
	}
	return rate(len(messages), took), s.hasEffects(ctx, effects{orders: len(messages), inbox: len(messages)})
}

const (
	limitedTenants = 20
	limitedAtOnce  = 2
)

// limited returns how many messages of the small tenants are handled per second by three consumers
// that handle few messages of a tenant at once. Meanwhile the large tenant has messages waiting.
// Handlers wait, as for the answer of another service, so the large tenant takes handlers from the
// others, but no processor time.
func (b *bench) limited(ctx context.Context, waiting int) (_ float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	each := max(b.consume/limitedTenants, 1)
	for n := range limitedTenants {
		err = errors.Join(err, s.insertWaiting(ctx, strconv.Itoa(n), each))
	}
	if err = errors.Join(err, s.insertWaiting(ctx, many, waiting)); err != nil {
		return 0, err
	}
	config := once.ConsumerConfig{
		DurableConsumers: []string{consumerName}, Durable: durable.Config{TenantConcurrency: limitedAtOnce},
		Retry: retry.Config{Concurrency: inFlight, ShareConsumer: true},
	}
	p := newProgress(limitedTenants * each)
	handed := make(chan *message.Message) // stays empty: the messages are in the table
	var routers []*message.Router
	ended := make(chan error, 3)
	for range cap(ended) {
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		routers = append(routers, router)
		consumer, err := once.NewConsumer(s.db.DB, config)
		if err != nil {
			return 0, err
		}
		router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
			counted := p.middleware(h)
			return func(msg *message.Message) ([]*message.Message, error) {
				if msg.Metadata[outbox.TenantID] == many {
					return h(msg)
				}
				return counted(msg)
			}
		})
		consumer.AddHandler(router, consumerName, s.queue.name, &fair{handed: handed},
			func(ctx context.Context, tx *sql.Tx, _ *message.Message) ([]*message.Message, error) {
				if err := wait(ctx, time.Now().Add(20*time.Millisecond)); err != nil {
					return nil, err
				}
				return nil, business(ctx, tx)
			})
	}
	for _, router := range routers {
		go func() { ended <- router.Run(ctx) }()
	}
	err = p.await(ctx, ended)
	close(handed)
	for _, router := range routers {
		err = errors.Join(err, router.Close())
	}
	if err != nil {
		return 0, err
	}
	return rate(p.target, p.last.Sub(p.first)), s.stillWait(ctx, waiting > 0)
}

// stillWait returns an error unless the large tenant has messages that wait, if it had.
func (s *scene) stillWait(ctx context.Context, had bool) error {
	var left bool
	err := s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM once_parked WHERE tenant = $1)`, many).Scan(&left)
	if err == nil && left != had {
		err = errors.New("messages of the large tenant should wait during the measurement, but none of them is left")
	}
	return err
}

// fair returns the median time in milliseconds until the messages of the small tenant are
// handled. During the measurement the large tenant has the given number of waiting
// messages.
func (b *bench) fair(ctx context.Context, waiting int) (_ float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.insertWaiting(ctx, many, waiting); err != nil {
		return 0, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	f := &fair{handed: make(chan *message.Message), handled: make(chan error)}
	router.AddMiddleware(f.middleware)
	consumer, err := once.NewConsumer(s.db.DB, once.ConsumerConfig{DurableConsumers: []string{consumerName}})
	if err != nil {
		return 0, errors.Join(err, router.Close())
	}
	consumer.AddHandler(router, consumerName, s.queue.name, f, handled)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	took, err := f.probe(ctx, b.delivering)
	if err = errors.Join(err, router.Close(), <-ended); err != nil {
		return 0, err
	}
	return quantile(took, 0.5), s.stillWait(ctx, waiting > 0)
}

// insertWaiting inserts waiting messages of a tenant, in the form in which a
// durable consumer stores them. Each message has its own id.
func (s *scene) insertWaiting(ctx context.Context, tenant string, messages int) error {
	msg := newMessage()
	outbox.SetTenant(msg, tenant)
	envelope := parkedrows.Encode(msg)
	at := bytes.Index(envelope, []byte(msg.UUID)) + 1
	if _, err := s.db.ExecContext(ctx, `
		INSERT INTO once_parked (consumer, topic, message_id, tenant, digest, envelope, state, due_at)
		SELECT $1, $2, id, $3, $4, overlay($5::bytea placing convert_to(id, 'UTF8') from $6::integer), 'waiting', now()
		FROM (SELECT gen_random_uuid()::text AS id FROM generate_series(1, $7::bigint)) AS ids`,
		consumerName, s.queue.name, tenant, parkedrows.Digest(msg), envelope, at, messages); err != nil {
		return err
	}
	return s.exec(ctx, `VACUUM ANALYZE once_parked`, `CHECKPOINT`)
}

// fair is a subscriber that delivers the messages of the small tenant. It is also a
// middleware that reports each of these messages when it was handled.
type fair struct {
	handed  chan *message.Message
	handled chan error
}

func (f *fair) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return f.handed, nil
}

func (f *fair) Close() error { return nil }

func (f *fair) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if msg.Metadata[outbox.TenantID] == few {
			select {
			case f.handled <- err:
			case <-msg.Context().Done():
			}
		}
		return produced, err
	}
}

// probe delivers the messages of the small tenant repeatedly. It returns how long each
// delivery took, in milliseconds, sorted. The first deliveries do not count, because
// they open connections.
func (f *fair) probe(ctx context.Context, during time.Duration) (took []float64, err error) {
	defer close(f.handed)
	const warmUp = 3
	for n, start := 0, time.Now(); n <= warmUp || time.Since(start) < during; n++ {
		if err := wait(ctx, time.Now().Add(rand.N(100*time.Millisecond))); err != nil {
			return nil, err
		}
		one, err := f.once(ctx)
		if err != nil {
			return nil, err
		}
		if n >= warmUp {
			took = append(took, float64(one)/float64(time.Millisecond))
		}
	}
	slices.Sort(took)
	return took, nil
}

func (f *fair) once(ctx context.Context) (time.Duration, error) {
	msgs := newMessages(fewMessages)
	start := time.Now()
	for _, msg := range msgs {
		outbox.SetTenant(msg, few)
		select {
		case f.handed <- msg:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	for range msgs {
		select {
		case err := <-f.handled:
			if err != nil {
				return 0, err
			}
		case <-time.After(patience):
			return 0, fmt.Errorf("%d messages were not handled within %v", fewMessages, patience)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return time.Since(start), nil
}

// outboxFairness measures how long a few messages of one tenant take from their commit to
// their confirm: with an empty outbox, and while a million messages of another tenant
// wait in it. The forwarder gets no hints, as if it ran in a process of its own.
func (b *bench) outboxFairness(ctx context.Context) ([]row, error) {
	alone := series{
		id: "outbox-fair-alone", unit: milliseconds,
		what: fmt.Sprintf("%d messages of a tenant from commit to confirm, nothing waiting", fewMessages),
	}
	busy := series{
		id: "outbox-fair-busy", unit: milliseconds,
		what: fmt.Sprintf("the same while another tenant has %d in the outbox", b.backlog),
	}
	keyed := series{id: "outbox-fair-keys", unit: milliseconds, what: "the same, all with ordering keys"}
	err := b.turns(
		ctx,
		single(&alone, func(ctx context.Context) (float64, error) { return b.fairOutbox(ctx, 0, 0) }),
		single(&busy, func(ctx context.Context) (float64, error) { return b.fairOutbox(ctx, b.backlog, 0) }),
		single(&keyed, func(ctx context.Context) (float64, error) { return b.fairOutbox(ctx, b.backlog, b.backlog/10) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{alone.row(), busy.againstAtMost(alone, 3), keyed.againstAtMost(alone, 3)}, nil
}

// fairOutbox returns the median time in milliseconds until the messages of the small
// tenant are confirmed. During the measurement, messages of the large tenant wait.
// keys is the number of ordering keys of these waiting messages.
func (b *bench) fairOutbox(ctx context.Context, waiting, keys int) (_ float64, err error) {
	s, err := b.newScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fillFor(ctx, many, waiting, keys); err != nil {
		return 0, err
	}
	publisher, err := newPublisher(s.queue.config(), s.queue.name)
	if err != nil {
		return 0, err
	}
	defer closing(publisher, &err)
	p := &fewCounted{Publisher: publisher, confirmed: make(chan error, fewMessages)}
	fwd, err := forwarder.New(s.db.DB, p, forwarder.Config{})
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- fwd.Run(ctx) }()
	took, err := s.probe(ctx, p, keys > 0, b.delivering)
	if err = errors.Join(err, fwd.Close(), <-ended); err != nil {
		return 0, err
	}
	var left bool
	err = s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM once_outbox)`).Scan(&left)
	const enough = 100_000 // a smaller backlog, as in tests, may end before the measurement
	if err == nil && !left && waiting >= enough {
		err = fmt.Errorf("%d messages should wait during the measurement, but none of them is left", waiting)
	}
	return quantile(took, 0.5), err
}

// probe writes a few messages of the small tenant in one transaction, and does this again
// and again. For each transaction it measures the time from the commit until all of its
// messages were confirmed. It returns these times in milliseconds, sorted. The first few
// times are not counted.
func (s *scene) probe(ctx context.Context, p *fewCounted, keyed bool, during time.Duration) (took []float64, err error) {
	const warmUp = 3
	for n, start := 0, time.Now(); n <= warmUp || time.Since(start) < during; n++ {
		if err := wait(ctx, time.Now().Add(rand.N(200*time.Millisecond))); err != nil {
			return nil, err
		}
		one, err := s.sendFew(ctx, p, keyed)
		if err != nil {
			return nil, err
		}
		if n >= warmUp {
			took = append(took, float64(one)/float64(time.Millisecond))
		}
	}
	slices.Sort(took)
	return took, nil
}

func (s *scene) sendFew(ctx context.Context, p *fewCounted, keyed bool) (time.Duration, error) {
	msgs := newMessages(fewMessages)
	for i, msg := range msgs {
		outbox.SetTenant(msg, few)
		if keyed {
			outbox.SetOrderingKey(msg, few+strconv.Itoa(i))
		}
	}
	if err := outbox.InTx(ctx, s.db.DB, func(_ *sql.Tx, events message.Publisher) error {
		return events.Publish(s.queue.name, msgs...)
	}); err != nil {
		return 0, err
	}
	start := time.Now()
	for range msgs {
		select {
		case err := <-p.confirmed:
			if err != nil {
				return 0, err
			}
		case <-time.After(patience):
			return 0, fmt.Errorf("%d messages were not confirmed within %v; %d of the other tenant were", fewMessages, patience, p.others.Load())
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return time.Since(start), nil
}

// fewCounted is a publisher that sends the outcomes of the small tenant's messages to a
// channel, and counts the outcomes of the other messages.
type fewCounted struct {
	*rabbit.Publisher

	confirmed chan error
	others    atomic.Int64
}

// PublishUnordered is the method that the forwarder calls.
func (p *fewCounted) PublishUnordered(topic string, msg *message.Message, done func(error)) {
	isFew := msg.Metadata[outbox.TenantID] == few
	p.Publisher.PublishUnordered(topic, msg, func(err error) {
		if isFew {
			p.confirmed <- err
		} else {
			p.others.Add(1)
		}
		done(err)
	})
}
