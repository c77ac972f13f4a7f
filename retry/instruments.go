package retry

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/telemetry"
)

// Outcomes of an attempt. The values are indexes of the counter's series.
const (
	handled = iota
	again
	parkedFor
	givenUp
	undecided
	interrupted
	early
	notCounted
)

var outcomes = []string{
	handled: "handled", again: "again", parkedFor: "parked", givenUp: "given_up",
	undecided: "undecided", interrupted: "interrupted", early: "early", notCounted: "not_counted",
}

// Changes of a breaker. The values are indexes of the counter's series.
const (
	opened = iota // for all instances
	closed
	openedAlone // for one instance
	closedAlone
)

var changes = []string{opened: "opened", closed: "closed", openedAlone: "opened_alone", closedAlone: "closed_alone"}

type instruments struct {
	meter         telemetry.Meter
	processes     *telemetry.Processes
	attempts      *telemetry.Counter
	duration      *telemetry.Durations
	redelivered   *telemetry.Counter
	crashes       *telemetry.Counter
	waiting       metric.Int64Observable
	lag           metric.Float64Observable
	stored        *telemetry.Counter
	waitingForKey metric.Int64Observable
	blockedKeys   metric.Int64Observable
	paused        metric.Int64Observable
	breaker       *telemetry.Counter
	limited       *telemetry.Counter
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "retry")
	i := &instruments{
		meter:     meter,
		processes: telemetry.NewProcesses(meter, telemetry.NewTracer(config.TracerProvider, "retry")),
		attempts: meter.Counter("once.retry.attempts", "{attempt}", "Calls of handlers, by their outcome.",
			telemetry.Label{Key: telemetry.Outcome, Values: outcomes}),
		duration: meter.Durations("once.retry.attempt.duration", "How long a handler took.", telemetry.Done()),
		redelivered: meter.Counter("once.retry.redelivered", "{message}",
			"Redelivered messages that were parked before their handlers ran."),
		crashes: meter.Counter("once.retry.crashes", "{message}",
			"Parked messages that were claimed when a process died."),
		stored: meter.Counter("once.retry.stored", "{message}",
			"Messages with an ordering key that were stored before their handlers ran."),
		waitingForKey: meter.Gauge("once.retry.waiting_for_key", "{message}",
			"Messages that wait behind another message of their ordering key, counted up to 100,000."),
		blockedKeys: meter.Gauge("once.retry.blocked_keys", "{key}",
			"Ordering keys that are blocked by a message in quarantine, counted up to 100,000."),
		breaker: meter.Counter("once.retry.breaker", "{change}", "How often breakers have opened and closed.",
			telemetry.Label{Key: telemetry.Outcome, Values: changes}),
		limited: meter.Counter("once.retry.limited", "{message}",
			"Calls of handlers that have waited because of their consumer's limit."),
		paused: meter.Gauge("once.retry.paused", "{consumer}",
			"Consumers that are paused, counted for each topic."),
		waiting: meter.Gauge("once.retry.waiting", "{message}", "Parked messages, counted up to 100,000."),
		lag:     meter.SecondsGauge("once.retry.lag", "Time since the oldest due parked message became due."),
	}
	for _, counter := range []*telemetry.Counter{i.attempts, i.redelivered, i.crashes, i.stored, i.breaker, i.limited} {
		counter.Zero()
	}
	return i
}

// watchers counts the subscriptions of a Retries. Without any, the metrics of the table are not
// observed.
type watchers struct {
	mu    sync.Mutex
	count int
	end   func()
}

func (r *Retries) watch() (done func()) {
	w := &r.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count == 0 {
		var backlog telemetry.StatsCache[parkedrows.Backlog]
		logError := func(err error) {
			r.config.Logger.Error("Metrics of parked messages cannot be read, retrying", err, nil)
		}
		i := r.instruments
		w.end = i.meter.Observe(func(ctx context.Context, o metric.Observer) error {
			if seen, ok := backlog.Get(ctx, r.store.Backlog, logError); ok {
				o.ObserveInt64(i.waiting, seen.Waiting)
				o.ObserveFloat64(i.lag, seen.Lag.Seconds())
				o.ObserveInt64(i.waitingForKey, seen.WaitingForKey)
				o.ObserveInt64(i.blockedKeys, seen.BlockedKeys)
				o.ObserveInt64(i.paused, seen.Paused)
			}
			return nil
		}, i.waiting, i.lag, i.waitingForKey, i.blockedKeys, i.paused)
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
