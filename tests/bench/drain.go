package main

import (
	"context"
	"fmt"
	"time"
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

// best returns the series with the highest median.
func best(all []series) series {
	highest := all[0]
	for _, s := range all[1:] {
		if s.median() > highest.median() {
			highest = s
		}
	}
	return highest
}

// drainFilled fills an outbox, and measures how fast it is drained.
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
	start := time.Now()
	f.start(ctx)
	if err := f.await(ctx); err != nil {
		return 0, err
	}
	if err := f.stop(); err != nil {
		return 0, err
	}
	took := time.Since(start)
	if err := s.empty(ctx); err != nil {
		return 0, err
	}
	return rate(messages, took), s.queue.awaitMessages(ctx, messages+1)
}

// empty returns an error if messages are left in the outbox.
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
