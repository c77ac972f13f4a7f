package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/rabbit"
	"github.com/watermill-once/once/retry"
	"github.com/watermill-once/once/sequence"
)

// drain measures how fast the messages of an outbox are published and confirmed, and how fast the
// broker can confirm messages without an outbox.
func (b *bench) drain(ctx context.Context) ([]row, error) {
	var rows []row
	for _, kind := range b.kinds {
		more, err := b.drainOn(ctx, kind)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// The lowest allowed ratios of the rate of our forwarder to two other rates, for each
// type of queue: perRaw to the rate of raw publishing, and perStock to the rate of
// Watermill's forwarder.
var (
	perRaw   = map[string]float64{"quorum": 0.9, "classic": 0.95}
	perStock = map[string]float64{"quorum": 15, "classic": 8}
)

func (b *bench) drainOn(ctx context.Context, kind string) ([]row, error) {
	var (
		alone = series{id: "publisher-" + kind, what: "rabbit.Publisher alone, " + kind, unit: perSecond}
		stock = series{id: "stock-" + kind, what: "stock forwarder with confirms and a channel pool, " + kind, unit: perSecond}
		ours  = series{id: "drain-" + kind, what: "forwarder with rabbit.Publisher, " + kind, unit: perSecond}

		windows      = make([]series, len(rawWindows))
		measurements []measurement
	)
	for i, window := range rawWindows {
		windows[i] = series{
			id: "raw-" + kind, what: fmt.Sprintf("raw pipelined confirms, window %d, %s", window, kind), unit: perSecond,
		}
		measurements = append(measurements, single(&windows[i], func(ctx context.Context) (float64, error) {
			return b.raw(ctx, kind, b.messages, func(ctx context.Context, r *rawChannel) error { return r.pipelined(ctx, window) })
		}))
	}
	measurements = append(measurements,
		single(&alone, func(ctx context.Context) (float64, error) { return b.publisherAlone(ctx, kind, b.messages) }),
		single(&ours, func(ctx context.Context) (float64, error) { return b.drainFilled(ctx, kind, b.messages, 0) }),
		single(&stock, func(ctx context.Context) (float64, error) { return b.stockDrain(ctx, kind) }),
	)
	if err := b.turns(ctx, measurements...); err != nil {
		return nil, err
	}
	raw := best(windows)
	return []row{
		raw.row(),
		alone.against(raw, 0),
		stock.row(),
		ours.against(raw, perRaw[kind]),
		ours.named("-per-stock", "the same, against the stock forwarder").against(stock, perStock[kind]),
	}, nil
}

func best(all []series) series {
	highest := all[0]
	for _, s := range all[1:] {
		if s.median() > highest.median() {
			highest = s
		}
	}
	return highest
}

func (b *bench) drainFilled(ctx context.Context, kind string, messages, keys int) (_ float64, err error) {
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fill(ctx, messages, keys); err != nil {
		return 0, err
	}
	return s.drain(ctx, messages)
}

// drain forwards all messages of the outbox. It measures from the start of the forwarder
// until it has stopped. So the time includes taking the lease and deleting the rows.
func (s *scene) drain(ctx context.Context, messages int) (_ float64, err error) {
	f, err := s.forward(messages)
	if err != nil {
		return 0, err
	}
	defer closing(f, &err)
	spent, start := measureCost(ctx), time.Now()
	f.start(ctx)
	if err := f.await(ctx); err != nil {
		return 0, err
	}
	if err := f.stop(); err != nil {
		return 0, err
	}
	took := time.Since(start)
	spent(messages)
	if err := s.empty(ctx); err != nil {
		return 0, err
	}
	return rate(messages, took), s.queue.awaitMessages(ctx, messages+1)
}

func (s *scene) empty(ctx context.Context) error {
	var left int
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM once_outbox`).Scan(&left); err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("%d messages were confirmed and not deleted", left)
	}
	return nil
}

func (b *bench) backlogs(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	short := series{
		id: "backlog-short", unit: perSecond,
		what: fmt.Sprintf("forwarder with %d waiting, %s", b.small, kind),
	}
	long := series{
		id: "backlog-long", unit: perSecond,
		what: fmt.Sprintf("the same with %d waiting, the first %d of them", b.backlog, b.start),
	}
	raw := series{
		id: "backlog-raw", unit: perSecond,
		what: fmt.Sprintf("raw pipelined confirms of %d messages, window %d, %s", b.start, rawWindows[1], kind),
	}
	err := b.turns(
		ctx,
		single(&raw, func(ctx context.Context) (float64, error) {
			return b.raw(ctx, kind, b.start, func(ctx context.Context, r *rawChannel) error { return r.pipelined(ctx, rawWindows[1]) })
		}),
		single(&short, func(ctx context.Context) (float64, error) { return b.firstOf(ctx, kind, b.small, b.small, b.rounds) }),
		single(&long, func(ctx context.Context) (float64, error) { return b.firstOf(ctx, kind, b.backlog, b.start, 1) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{
		short.row(), long.against(short, 0),
		raw.row(), long.named("-per-raw", "forwarder with a long backlog, as above, against raw").against(raw, 0.88),
	}, nil
}

// firstOf fills an outbox with waiting messages, and measures how fast the first of them
// are forwarded. It repeats this for the given number of rounds. It measures from the
// first publish to the last confirm, without the start of the forwarder. The start would
// take a larger share of the time for a short backlog than for a long one.
func (b *bench) firstOf(ctx context.Context, kind string, waiting, first, rounds int) (_ float64, err error) {
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.prepare(ctx); err != nil {
		return 0, err
	}
	var took time.Duration
	for range rounds {
		if err := s.add(ctx, waiting, 0); err != nil {
			return 0, err
		}
		if err := s.settle(ctx); err != nil {
			return 0, err
		}
		spent := measureCost(ctx)
		once, err := s.first(ctx, first)
		if err != nil {
			return 0, err
		}
		spent(first)
		took += once
	}
	return rate(first*rounds, took), s.queue.awaitMessages(ctx, (first+1)*rounds)
}

func (s *scene) first(ctx context.Context, first int) (took time.Duration, err error) {
	f, err := s.forward(first)
	if err != nil {
		return 0, err
	}
	defer closing(f, &err)
	f.start(ctx)
	if err := f.await(ctx); err != nil {
		return 0, err
	}
	return f.publisher.last.Sub(f.publisher.first), nil
}

// keys measures the cost of keeping the order of keys. The cost arises because at most
// one message of each ordering key may be unconfirmed.
func (b *bench) keys(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	var (
		none = series{id: "keys-none", what: "forwarder, no ordering keys, " + kind, unit: perSecond}
		many = series{id: "keys-1000", what: "the same, 1000 ordering keys", unit: perSecond}
		raw  = series{id: "hot-raw", what: "raw, one confirm at a time, " + kind, unit: perSecond}
		hot  = series{id: "hot-key", what: "forwarder, all messages of one ordering key", unit: perSecond}
	)
	err := b.turns(
		ctx,
		single(&none, func(ctx context.Context) (float64, error) { return b.drainFilled(ctx, kind, b.messages, 0) }),
		single(&many, func(ctx context.Context) (float64, error) { return b.drainFilled(ctx, kind, b.messages, 1000) }),
		single(&raw, func(ctx context.Context) (float64, error) {
			return b.raw(ctx, kind, b.slow, func(ctx context.Context, r *rawChannel) error { return r.oneByOne(ctx) })
		}),
		single(&hot, func(ctx context.Context) (float64, error) { return b.drainFilled(ctx, kind, b.slow, 1) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), many.against(none, 0.95), raw.row(), hot.against(raw, 0.85)}, nil
}

// keysOfModes is the number of ordering keys, and of aggregates. They are assigned to the messages
// in rotation.
const keysOfModes = 1000

// modes measures how much slower a consumer is when it keeps the order of keys or of versions.
func (b *bench) modes(ctx context.Context) ([]row, error) {
	var (
		none  = series{id: "modes-default", what: fmt.Sprintf("once.Consumer, %d in flight, %s", inFlight, b.kinds[0])}
		order = series{id: "modes-order", what: fmt.Sprintf("the same in the order of %d keys", keysOfModes)}
		newer = series{id: "modes-newer", what: fmt.Sprintf("the same, older versions of %d aggregates ignored", keysOfModes)}
		all   = series{id: "modes-gap", what: "the same, versions applied without a gap"}
	)
	mode := func(into *series, flight int, config once.ConsumerConfig) measurement {
		into.unit = perSecond
		return single(into, func(ctx context.Context) (float64, error) { return b.placed(ctx, flight, config) })
	}
	err := b.turns(
		ctx,
		mode(&none, inFlight, once.ConsumerConfig{}),
		mode(&order, 2*batchSize, once.ConsumerConfig{Retry: retry.Config{KeyOrder: retry.BlockWhileRetried, Concurrency: inFlight}}),
		mode(&newer, inFlight, once.ConsumerConfig{Sequence: &sequence.Config{}}),
		mode(&all, inFlight, once.ConsumerConfig{Sequence: &sequence.Config{Policy: sequence.HoldForGap}}),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), order.against(none, 0), newer.against(none, 0), all.against(none, 0)}, nil
}

// placed measures a consumer whose messages have an ordering key and a version, even if
// its configuration ignores them.
func (b *bench) placed(ctx context.Context, flight int, config once.ConsumerConfig) (_ float64, err error) {
	s, err := b.newConsumerScene(ctx, b.kinds[0])
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	messages := newMessages(b.slow)
	for n, msg := range messages {
		key := strconv.Itoa(n % keysOfModes)
		msg.Metadata.Set("once_ordering_key", key)
		msg.Metadata.Set("once_aggregate_type", "order")
		msg.Metadata.Set("once_aggregate_id", key)
		msg.Metadata.Set("once_aggregate_version", strconv.Itoa(n/keysOfModes+1))
	}
	took, err := s.consume(ctx, messages, func(s *scene, router *message.Router) error {
		subscriber, err := s.subscriber(rabbit.SubscriberConfig{InFlight: flight})
		if err != nil {
			return err
		}
		consumer, err := once.NewConsumer(s.db.DB, config)
		if err != nil {
			return err
		}
		consumer.AddHandler(router, consumerName, s.queue.name, subscriber, handled)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return rate(len(messages), took), s.hasEffects(ctx, effects{orders: len(messages), inbox: len(messages)})
}
