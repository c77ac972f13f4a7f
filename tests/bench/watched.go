package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/rabbit"
)

// watched is a measurement of the same work with an open overview and without one.
type watched struct {
	rate, used  compared // messages per second; processor time of PostgreSQL and Go for a message
	unavailable bool     // the processor time of the server cannot be measured
}

// compared is a figure with an open overview and without one.
type compared struct {
	without, with series
	pairs         []float64 // each is the figure of a window with an overview, divided by the figure of the window beside it without one
}

func newCompared(id, suffix, what, unit string) compared {
	return compared{
		without: series{id: id + "-without" + suffix, what: what, unit: unit},
		with:    series{id: id + suffix, what: "the same with an open overview, in turns of seconds", unit: unit},
	}
}

func newWatched(id, what string) *watched {
	return &watched{
		rate: newCompared(id, "", what, perSecond),
		used: newCompared(id, "-cpu", "processor time of PostgreSQL and Go per message", microseconds),
	}
}

func (w *watched) measurement(measure func(ctx context.Context) (windows, error)) measurement {
	into := []*series{&w.rate.without, &w.rate.with, &w.used.without, &w.used.with}
	return measurement{into, func(ctx context.Context) ([]float64, error) {
		got, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		w.unavailable = w.unavailable || got.untimed
		w.rate.add(got, func(f figures) float64 { return f.rate })
		w.used.add(got, func(f figures) float64 { return f.used })
		var values []float64
		for _, figure := range []func(f figures) float64{func(f figures) float64 { return f.rate }, func(f figures) float64 { return f.used }} {
			values = append(values, medianOf(got.without, figure), medianOf(got.with, figure))
		}
		return values, nil
	}}
}

func (c *compared) add(w windows, figure func(f figures) float64) {
	for n, with := range w.with {
		c.pairs = append(c.pairs, figure(with)/figure(w.without[n]))
	}
}

func medianOf(all []figures, figure func(f figures) float64) float64 {
	var s series
	for _, f := range all {
		s.values = append(s.values, figure(f))
	}
	return s.median()
}

// rows returns the rates and the processor times. Their ratios compare the work with an
// open overview to the same work without one. The ratio of the rates must be at least
// floor, and the ratio of the processor times at most limit. A
// ratio is the median of the ratios of neighboring windows.
func (w *watched) rows(floor, limit float64) []row {
	with := w.rate.with.against(w.rate.without, floor)
	with.Ratio = series{values: w.rate.pairs}.median()
	rows := []row{w.rate.without.row(), with}
	if !w.unavailable {
		used := w.used.with.againstAtMost(w.used.without, limit)
		used.Ratio = series{values: w.used.pairs}.median()
		rows = append(rows, w.used.without.row(), used)
	}
	return rows
}

// figures contains the rate and the processor time of one window.
type figures struct {
	rate float64 // messages per second
	used float64 // processor time of PostgreSQL and Go for a message, in microseconds
}

// windows contains the figures of all windows. The windows with the same index in both
// lists are neighbors in time.
type windows struct {
	without, with []figures
	untimed       bool
}

// work is the work that is measured.
type work struct {
	db   *database
	done func() int64 // number of messages that are done so far
	all  int          // number of messages that there are to do
}

// alternate measures the work in windows of time. In one of two neighboring windows the
// overview is open, and in the other one it is closed. So a disturbance of the machine,
// or a queue that grows, affects both kinds of windows.
func (b *bench) alternate(ctx context.Context, o *overview, work work) (w windows, err error) {
	largest := int64(0)
	for start, n := time.Now(), 0; time.Since(start) < b.watching; n++ {
		if left := int64(work.all) - work.done(); n > 0 && left < 3*largest {
			fmt.Fprintf(b.progress, "the work is done after %v\n", time.Since(start).Round(time.Second))
			break
		}
		openFirst := n%2 == 1
		for _, open := range []bool{openFirst, !openFirst} {
			before := work.done()
			got, timed, err := b.turn(ctx, o, open, work)
			if err != nil {
				return w, err
			}
			w.untimed = w.untimed || !timed
			largest = max(largest, work.done()-before)
			if open {
				w.with = append(w.with, got)
			} else {
				w.without = append(w.without, got)
			}
		}
	}
	return w, nil
}

func (b *bench) turn(ctx context.Context, o *overview, open bool, work work) (f figures, timed bool, err error) {
	if open {
		err = o.show()
	} else {
		err = o.hide(ctx)
	}
	if err != nil {
		return f, false, err
	}
	before, timed, err := work.db.processor(ctx)
	if err != nil {
		return f, false, err
	}
	looked := make(chan error, 1)
	did, start := work.done(), time.Now()
	go func() {
		if open {
			looked <- o.look(ctx, b.window)
		}
		close(looked)
	}()
	err = wait(ctx, start.Add(b.window))
	for end := start.Add(stockPatience); err == nil && work.done() == did && time.Now().Before(end); { // a very busy machine
		err = wait(ctx, time.Now().Add(b.window))
	}
	did, took := work.done()-did, time.Since(start)
	after, _, failed := work.db.processor(ctx)
	if err = errors.Join(err, failed, <-looked); err != nil {
		return f, false, err
	}
	if did == 0 {
		return f, false, fmt.Errorf("nothing was done within %v", stockPatience)
	}
	used := after.minus(before)
	f.rate, f.used = rate(int(did), took), float64((used.own+used.postgres).Microseconds())/float64(did)
	return f, timed, nil
}

func (s *scene) refill(ctx context.Context, messages int) error {
	if err := s.exec(ctx, `TRUNCATE once_outbox`); err != nil {
		return err
	}
	if err := s.add(ctx, messages, 0); err != nil {
		return err
	}
	return s.settle(ctx)
}

// drainWatched measures how an open overview affects the forwarder. overviewTime must run
// before, because it fills the outbox.
func (b *bench) drainWatched(ctx context.Context, large *filledInbox) (w windows, err error) {
	o, err := large.openOverview(ctx)
	if err != nil {
		return w, err
	}
	defer closing(o, &err)
	f, err := large.forward(storedTogether)
	if err != nil {
		return w, err
	}
	defer closing(f, &err)
	f.start(ctx)
	if err := f.await(ctx); err != nil { // wait until messages flow
		return w, err
	}
	if w, err = b.alternate(ctx, o, work{large.db, f.publisher.confirmed.Load, b.watched}); err != nil {
		return w, err
	}
	if err := f.stop(); err != nil {
		return w, err
	}
	return w, errors.Join(large.queue.awaitMessages(ctx, int(f.publisher.confirmed.Load())), large.queue.purge())
}

// consumeWatched measures how an open overview affects the consumer.
func (b *bench) consumeWatched(ctx context.Context, large *filledInbox) (w windows, err error) {
	if err := large.exec(ctx, `TRUNCATE orders`, `TRUNCATE once_outbox`); err != nil {
		return w, err
	}
	messages := b.watched / 8
	for left := messages; left > 0; left -= b.consume {
		if err := large.queue.publish(ctx, large.messages(min(left, b.consume))); err != nil {
			return w, err
		}
	}
	if err := large.exec(ctx, `CHECKPOINT`); err != nil {
		return w, err
	}
	o, err := large.openOverview(ctx)
	if err != nil {
		return w, err
	}
	defer closing(o, &err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return w, err
	}
	var handled, failed atomic.Int64
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := h(msg)
			if err == nil {
				handled.Add(1)
			} else {
				failed.Add(1)
			}
			return produced, err
		}
	})
	if err := chain(rabbit.SubscriberConfig{})(large.scene, router); err != nil {
		return w, errors.Join(err, router.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	err = flowing(ctx, &handled)
	if err == nil {
		w, err = b.alternate(ctx, o, work{large.db, handled.Load, messages})
	}
	if err = errors.Join(err, router.Close(), <-ended); err != nil {
		return w, err
	}
	if n := failed.Load(); n > 0 {
		return w, fmt.Errorf("%d messages failed", n)
	}
	did := int(handled.Load())
	large.remembered += did
	want := effects{orders: did, inbox: large.remembered, quarantined: b.remembered / 10}
	return w, errors.Join(large.hasEffects(ctx, want), large.queue.purge())
}

func flowing(ctx context.Context, handled *atomic.Int64) error {
	for end := time.Now().Add(stockPatience); handled.Load() < inFlight; {
		if time.Now().After(end) {
			return fmt.Errorf("%d messages were handled within %v", handled.Load(), stockPatience)
		}
		if err := wait(ctx, time.Now().Add(time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}
