package retry

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// Outcomes of an attempt. Each number is the index of a series of the counter.
const (
	handled = iota
	again
	parkedFor
	givenUp
	undecided
	interrupted
	early
)

var outcomes = []string{
	handled: "handled", again: "again", parkedFor: "parked", givenUp: "given_up",
	undecided: "undecided", interrupted: "interrupted", early: "early",
}

// unrun lists the reasons to quarantine a parked message without a call of its
// handler.
var unrun = []string{disposition.ReasonCrashed, disposition.ReasonUndecodable}

// instruments are the metrics and spans of a Retries.
type instruments struct {
	meter       telemetry.Meter
	tracer      telemetry.Tracer
	traced      func() bool
	attempts    *telemetry.Counter
	duration    *telemetry.Durations
	setAside    *telemetry.Counter
	crashes     *telemetry.Counter
	unrun       *telemetry.Counter
	waiting     metric.Int64Observable
	lag         metric.Float64Observable
	kept        *telemetry.Counter
	held        metric.Int64Observable
	blockedKeys metric.Int64Observable
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "retry")
	tracer := telemetry.NewTracer(config.TracerProvider, "retry")
	i := &instruments{
		meter:  meter,
		tracer: tracer,
		traced: sync.OnceValue(tracer.Enabled),
		attempts: meter.Counter("once.retry.attempts", "{attempt}", "Calls of handlers, by their outcome.",
			telemetry.Label{Key: telemetry.Outcome, Values: outcomes}),
		duration: meter.Durations("once.retry.attempt.duration", "How long a handler took.", telemetry.Done()),
		setAside: meter.Counter("once.retry.set_aside", "{message}",
			"Redelivered messages that were parked before their handlers ran."),
		crashes: meter.Counter("once.retry.crashes", "{message}",
			"Parked messages that were claimed when a process died."),
		unrun: meter.Counter("once.retry.quarantined", "{message}",
			"Parked messages that were quarantined without a call of their handlers.",
			telemetry.Label{Key: telemetry.Reason, Values: unrun}),
		kept: meter.Counter("once.retry.kept", "{message}",
			"Messages with an ordering key that were stored before their handlers ran."),
		held: meter.Gauge("once.retry.held", "{message}",
			"Messages that wait behind another message of their ordering key, counted up to 100,000."),
		blockedKeys: meter.Gauge("once.retry.blocked_keys", "{key}",
			"Ordering keys that are blocked by a message in quarantine, counted up to 100,000."),
		waiting: meter.Gauge("once.retry.waiting", "{message}", "Parked messages, counted up to 100,000."),
		lag:     meter.SecondsGauge("once.retry.lag", "Time since the oldest due parked message became due."),
	}
	for _, counter := range []*telemetry.Counter{i.attempts, i.setAside, i.crashes, i.unrun, i.kept} {
		counter.Zero()
	}
	return i
}

func (i *instruments) quarantined(reason string) {
	for series, name := range unrun {
		if name == reason {
			i.unrun.Add(1, series)
		}
	}
}

// watchers counts the subscriptions of a Retries. The table is observed while
// there is at least one.
type watchers struct {
	mu    sync.Mutex
	count int
	end   func()
}

// watch observes the table until the caller calls done.
func (r *Retries) watch() (done func()) {
	w := &r.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == 0 {
		var backlog telemetry.StatsCache[parked.Backlog]
		logError := func(err error) {
			r.config.Logger.Error("Metrics of parked messages cannot be read, retrying", err, nil)
		}
		i := r.instruments
		w.end = i.meter.Observe(func(ctx context.Context, o metric.Observer) error {
			if seen, ok := backlog.Get(ctx, r.store.Backlog, logError); ok {
				o.ObserveInt64(i.waiting, seen.Waiting)
				o.ObserveFloat64(i.lag, seen.Lag.Seconds())
				o.ObserveInt64(i.held, seen.Held)
				o.ObserveInt64(i.blockedKeys, seen.BlockedKeys)
			}
			return nil
		}, i.waiting, i.lag, i.held, i.blockedKeys)
	}
	w.count++
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.count--; w.count == 0 {
			w.end()
		}
	})
}
