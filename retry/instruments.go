package retry

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// What followed an attempt. The numbers are those of the counter's series.
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

// Reasons for which a parked message is quarantined without being run.
var unrun = []string{disposition.ReasonCrashed, disposition.ReasonUndecodable}

// instruments are what Retries tell about themselves.
type instruments struct {
	meter    telemetry.Meter
	tracer   telemetry.Tracer
	traced   func() bool
	attempts *telemetry.Counter
	duration *telemetry.Durations
	setAside *telemetry.Counter
	crashes  *telemetry.Counter
	unrun    *telemetry.Counter
	waiting  metric.Int64Observable
	lag      metric.Float64Observable
	kept     *telemetry.Counter
	held     metric.Int64Observable
	heldKeys metric.Int64Observable
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "retry")
	tracer := telemetry.NewTracer(config.TracerProvider, "retry")
	i := &instruments{
		meter:  meter,
		tracer: tracer,
		traced: sync.OnceValue(tracer.Enabled),
		attempts: meter.Counter("once.retry.attempts", "{attempt}", "Calls of handlers, by what followed.",
			telemetry.Label{Key: telemetry.Outcome, Values: outcomes}),
		duration: meter.Durations("once.retry.attempt.duration", "How long a handler took.", telemetry.Done()),
		setAside: meter.Counter("once.retry.set_aside", "{message}",
			"Messages that were delivered before, and parked before they are handled."),
		crashes: meter.Counter("once.retry.crashes", "{message}",
			"Parked messages that were in hand when a process ended."),
		unrun: meter.Counter("once.retry.quarantined", "{message}",
			"Parked messages that were quarantined without being run.",
			telemetry.Label{Key: telemetry.Reason, Values: unrun}),
		kept: meter.Counter("once.retry.kept", "{message}",
			"Messages that were stored before they are handled, in the order of their keys."),
		held: meter.Gauge("once.retry.held", "{message}",
			"Messages that wait behind another one of their ordering key, counted up to 100,000."),
		heldKeys: meter.Gauge("once.retry.blocked_keys", "{key}",
			"Ordering keys that are held by a message in quarantine, counted up to 100,000."),
		waiting: meter.Gauge("once.retry.waiting", "{message}", "Messages that are parked, counted up to 100,000."),
		lag:     meter.SecondsGauge("once.retry.lag", "How long the parked message has waited that is due the longest."),
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

// watchers has the table observed while there is a subscription.
type watchers struct {
	mu    sync.Mutex
	count int
	end   func()
}

// watch observes the table until done is called.
func (r *Retries) watch() (done func()) {
	w := &r.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == 0 {
		var backlog telemetry.Glance[parked.Backlog]
		tell := func(err error) {
			r.config.Logger.Error("The parked messages could not be looked at for the instruments, trying again", err, nil)
		}
		i := r.instruments
		w.end = i.meter.Observe(func(ctx context.Context, o metric.Observer) error {
			if seen, ok := backlog.Look(ctx, r.store.Backlog, tell); ok {
				o.ObserveInt64(i.waiting, seen.Waiting)
				o.ObserveFloat64(i.lag, seen.Lag.Seconds())
				o.ObserveInt64(i.held, seen.Held)
				o.ObserveInt64(i.heldKeys, seen.BlockedKeys)
			}
			return nil
		}, i.waiting, i.lag, i.held, i.heldKeys)
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
