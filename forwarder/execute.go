package forwarder

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/telemetry"
)

// execute runs the scheduler's commands.
func (l *loop) execute(c dispatch.Commands, now time.Time) {
	if c.Read != nil {
		l.read(c.Read)
	}
	l.sender.gate.Store(l.scheduler.Sending())
	if len(c.Publish) > 0 {
		stamp := meta.Stamp(now)
		for _, p := range c.Publish {
			l.sender.orders <- order{Publish: p, at: now, stamp: stamp}
		}
	}
	if c.Settle != nil {
		l.settle(c.Settle)
	}
}

func (l *loop) read(read *dispatch.Read) {
	l.background(func(ctx context.Context) func() {
		began := time.Now()
		got, err := l.store.rows(ctx, read)
		l.instruments.reads.Record(time.Since(began), telemetry.Succeeded(err))
		return func() {
			if err != nil {
				l.scheduler.ReadFailed(time.Now(), read, err)
				return
			}
			l.scheduler.RowsRead(time.Now(), read, got.rows, got.reach)
			if got.unowned && !l.scheduler.Stopping() {
				l.unowned()
			}
		}
	})
}

func (l *loop) settle(batch *dispatch.Settlement) {
	l.background(func(ctx context.Context) func() {
		began := time.Now()
		result := l.store.settle(ctx, batch, func(topic string) AfterDead { return l.config.policy(topic).AfterDead })
		l.instruments.settlements.Record(time.Since(began), telemetry.Succeeded(result.Err))
		return func() {
			l.settleErr = result.Err
			l.instruments.settled(batch, result)
			for _, d := range batch.Deaths[:result.Deaths] {
				m := d.Message
				l.config.Logger.Error("Message is dead", errors.New(clean(d.Err)), named(m.ID, d.Metadata, watermill.LogFields{
					"topic": m.Topic, "reason": reasonOf(d), "attempt": m.Attempts + 1, "size": d.Size,
				}))
			}
			l.scheduler.Settled(time.Now(), batch, result)
		}
	})
}

// processConfirms passes to the scheduler all outcomes that have arrived since its last
// call.
func (l *loop) processConfirms(now time.Time) {
	l.used = l.sender.results.take(l.used)
	l.instruments.beginRound()
	defer l.instruments.endRound()
	for _, r := range l.used {
		sent := !errors.Is(r.err, errNotSent)
		outcome, decision := Unavailable, dispatch.NotSent
		if sent {
			outcome = l.classify(r.err)
			decision = outcome.forScheduler(r.err)
		}
		if !l.scheduler.Published(now, r.Publish, decision, r.err) {
			continue // the publisher has already reported the result of this publish
		}
		if sent {
			l.instruments.published(r, outcome, now)
		}
		if !l.scheduler.Sending() {
			l.sender.gate.Store(false)
		}
	}
}

func (l *loop) classify(err error) Outcome {
	if err == nil {
		return Confirmed
	}
	return l.config.Classify(err)
}
