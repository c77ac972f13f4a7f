package main

import (
	"context"
	"fmt"
	"time"
)

// backlogs measures whether forwarding slows down when more messages wait.
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
		once, err := s.first(ctx, first)
		if err != nil {
			return 0, err
		}
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
