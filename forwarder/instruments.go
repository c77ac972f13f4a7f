package forwarder

import (
	"context"
	"database/sql"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/forwarder/internal/dispatch"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/telemetry"
)

// otherTopic stands for all topics that are not in Config.Topics.
const otherTopic = "other"

// instruments contains the metrics and the tracer. The loop counts in tallies, because calling a
// counter for each message costs too much at tens of thousands of messages per second.
type instruments struct {
	meter  telemetry.Meter
	tracer telemetry.Tracer
	topics map[string]int // index of the series of each topic; nil if the counters are not divided by topic

	outcomes, deferred, dead, stalled tally
	confirm, forward                  *telemetry.Durations
	reads, settlements                *telemetry.Durations

	timed bool // whether durations of confirms are recorded in this round of results

	inFlight, slots atomic.Int64
	state           observables
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "forwarder")
	i := &instruments{meter: meter, tracer: telemetry.NewTracer(config.TracerProvider, "forwarder")}
	var byTopic []telemetry.Label
	if len(config.Topics) > 0 {
		i.topics = map[string]int{}
		topics := telemetry.Label{Key: telemetry.Topic}
		for _, topic := range config.Topics {
			if _, twice := i.topics[topic]; !twice {
				i.topics[topic] = len(topics.Values)
				topics.Values = append(topics.Values, topic)
			}
		}
		topics.Values = append(topics.Values, otherTopic)
		byTopic = []telemetry.Label{topics}
	}
	counter := func(name, unit, description, key string, values ...string) tally {
		labels := byTopic
		if key != "" {
			labels = slices.Concat(byTopic, []telemetry.Label{{Key: key, Values: values}})
		}
		c := meter.Counter(name, unit, description, labels...)
		return tally{counter: c, counts: make([]int64, c.Series()), each: max(1, len(values))}
	}
	i.outcomes = counter("once.forwarder.published", "{message}",
		"Outcomes of publishes; one message may have several.",
		telemetry.Outcome, outcomeNames...)
	i.deferred = counter("once.forwarder.deferred", "{message}",
		"Messages that were postponed, because they were refused or their topic did not answer.",
		telemetry.Reason, outboxrow.BlockedRefused, outboxrow.BlockedUnknown)
	i.dead = counter("once.forwarder.dead", "{message}",
		"Messages that became dead letters.", telemetry.Reason, outboxrow.DeadUnacceptable, outboxrow.DeadExhausted)
	i.stalled = counter("once.forwarder.stalled", "{stall}",
		"Times that a topic stopped answering and was excluded.", "")
	i.confirm = meter.Durations("once.forwarder.confirm.duration",
		"From giving a message to the publisher until its confirm.")
	i.forward = meter.Delays("once.forwarder.forward.duration",
		"From storing a message in the outbox, or from its due time, until its confirm.")
	i.reads = meter.Durations("once.forwarder.read.duration",
		"How long it took to read a batch of the outbox.", telemetry.Done())
	i.settlements = meter.Durations("once.forwarder.settle.duration",
		"How long it took to record the outcomes of a batch.", telemetry.Done())
	i.state = newObservables(meter)
	return i
}

type tally struct {
	counter *telemetry.Counter
	counts  []int64
	each    int // number of series for one topic
}

// series is the index within the topic.
func (i *instruments) add(t *tally, topic string, series int) {
	number, listed := i.topics[topic]
	if !listed {
		number = len(i.topics) // the index of "other", or the only index
	}
	t.counts[number*t.each+series]++
}

func (t *tally) flush() {
	for series, n := range t.counts {
		if n > 0 {
			t.counter.Add(n, series)
			t.counts[series] = 0
		}
	}
}

func (i *instruments) start() {
	for _, t := range []*tally{&i.outcomes, &i.deferred, &i.dead, &i.stalled} {
		t.counter.Zero()
	}
}

// beginRound is called before the loop processes outcomes, endRound afterwards.
func (i *instruments) beginRound() { i.timed = i.confirm.Enabled() }

func (i *instruments) endRound() { i.outcomes.flush() }

func (i *instruments) published(r result, outcome Outcome, now time.Time) {
	finish(r, outcome)
	if outcome < Confirmed || outcome > Unavailable {
		outcome = Unavailable // Classify returned a value that is not an Outcome
	}
	i.add(&i.outcomes, r.Message.Topic, int(outcome))
	if i.timed && outcome == Confirmed {
		i.confirm.Record(now.Sub(r.at), 0)
		i.forward.Record(now.Sub(r.Message.Since), 0)
	}
}

func (i *instruments) settled(batch *dispatch.Settlement, result dispatch.Settled) {
	for _, d := range batch.Deaths[:result.Deaths] {
		reason := 0
		if d.Exhausted {
			reason = 1
		}
		i.add(&i.dead, d.Message.Topic, reason)
	}
	i.dead.flush()
	if !result.Charges {
		return
	}
	for _, c := range batch.Charges {
		reason := 0
		if c.Cause == dispatch.Unknown {
			reason = 1
		}
		i.add(&i.deferred, c.Message.Topic, reason)
	}
	i.deferred.flush()
}

func (i *instruments) stall(topic string) {
	i.add(&i.stalled, topic, 0)
	i.stalled.flush()
}

// note stores the numbers that observe reports when metrics are collected.
func (i *instruments) note(s *dispatch.Scheduler) {
	i.inFlight.Store(int64(s.InFlight()))
	i.slots.Store(int64(len(s.Slots())))
}

// observables are determined only when metrics are collected.
type observables struct {
	inFlight, slots, pending, blockedKeys, deadLetters, pauses metric.Int64Observable
	lag                                                        metric.Float64Observable
}

func newObservables(meter telemetry.Meter) observables {
	return observables{
		inFlight:    meter.Level("once.forwarder.in_flight", "{message}", "Messages given to the publisher and not yet answered."),
		slots:       meter.Level("once.forwarder.slots", "{slot}", "Parts of the outbox that this instance forwards."),
		lag:         meter.SecondsGauge("once.forwarder.lag", "How long the first message has waited that should have been sent, or is refused."),
		pending:     meter.Gauge("once.forwarder.pending", "{message}", "Messages in the outbox, counted up to 100,000."),
		blockedKeys: meter.Gauge("once.forwarder.blocked_keys", "{key}", "Ordering keys whose head was not accepted, counted up to 100,000."),
		deadLetters: meter.Gauge("once.forwarder.dead_letters", "{message}", "Dead letters that are there, counted up to 100,000."),
		pauses:      meter.Gauge("once.forwarder.pauses", "{pause}", "Topics and tenants that an operator has paused."),
	}
}

// observe registers the observables until end is called.
func (f *Forwarder) observe() (end func()) {
	i, s := f.instruments, &f.instruments.state
	i.start()
	var backlog telemetry.StatsCache[boundedStats]
	tell := func(err error) {
		f.config.Logger.Error("The outbox cannot be read for its metrics, trying again", err, nil)
	}
	return i.meter.Observe(func(ctx context.Context, o metric.Observer) error {
		o.ObserveInt64(s.inFlight, i.inFlight.Load())
		o.ObserveInt64(s.slots, i.slots.Load())
		if seen, ok := backlog.Get(ctx, f.store.boundedStats, tell); ok {
			o.ObserveFloat64(s.lag, seen.lag.Seconds())
			o.ObserveInt64(s.pending, seen.pending)
			o.ObserveInt64(s.blockedKeys, seen.blockedKeys)
			o.ObserveInt64(s.deadLetters, seen.dead)
			o.ObserveInt64(s.pauses, seen.pauses)
		}
		return nil
	}, s.inFlight, s.slots, s.lag, s.pending, s.blockedKeys, s.deadLetters, s.pauses)
}

const countedUpTo = 100_000

// boundedStats contains numbers for the metrics. Its counts stop at countedUpTo.
type boundedStats struct {
	lag                                time.Duration
	pending, blockedKeys, dead, pauses int64
}

func (s *store) boundedStats(ctx context.Context) (boundedStats, error) {
	var (
		seen                boundedStats
		first, due, failing sql.NullInt64
		now                 int64
	)
	err := s.read(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, s.sql.boundedStats, countedUpTo).
			Scan(&seen.pending, &first, &due, &failing, &seen.blockedKeys, &seen.dead, &seen.pauses, &now)
	})
	for _, since := range []sql.NullInt64{first, due, failing} {
		if since.Valid {
			seen.lag = max(seen.lag, time.Duration(now-since.Int64)*time.Millisecond)
		}
	}
	return seen, err
}

// boundedStatsQuery is cheap enough to run often: counts stop at $1, and an index finds the first
// message that waits, is due or has failed.
func boundedStatsQuery(d dialect.Dialect) string {
	return d.SQL(`
			SELECT (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {outbox} LIMIT $1) AS p),
			       ` + outboxrow.WaitingSince + `,
			       (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {blocked_keys} LIMIT $1) AS h),
			       (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {outbox_dead} LIMIT $1) AS d),
			       (SELECT COUNT(*) FROM {pauses}),
			       {clock}`)
}
