package poison

import (
	"context"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/telemetry"
)

// otherConsumer labels the consumers that are not in Config.Consumers.
const otherConsumer = "other"

type instruments struct {
	meter     telemetry.Meter
	tracer    telemetry.Tracer
	traced    func() bool
	consumers []string // consumers that have their own series; empty if all consumers share one series

	quarantined, failedAgain *telemetry.Counter

	entries metric.Int64Observable
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "poison")
	tracer := telemetry.NewTracer(config.TracerProvider, "poison")
	i := &instruments{meter: meter, tracer: tracer, traced: sync.OnceValue(tracer.Enabled)}
	var byConsumer []telemetry.Label
	if len(config.Consumers) > 0 {
		for _, consumer := range config.Consumers {
			if !slices.Contains(i.consumers, consumer) && consumer != otherConsumer {
				i.consumers = append(i.consumers, consumer)
			}
		}
		i.consumers = append(i.consumers, otherConsumer)
		byConsumer = []telemetry.Label{{Key: telemetry.Consumer, Values: i.consumers}}
	}
	i.quarantined = meter.Counter("once.poison.quarantined", "{message}", "Messages that were quarantined.",
		slices.Concat(byConsumer, []telemetry.Label{{Key: telemetry.Reason, Values: chain.Reasons}})...)
	i.failedAgain = meter.Counter("once.poison.failed_again", "{message}",
		"Messages whose handler failed again after a replay.", byConsumer...)
	i.entries = meter.Gauge("once.poison.entries", "{message}", "Messages in quarantine, counted up to 100,000.")
	for _, c := range []*telemetry.Counter{i.quarantined, i.failedAgain} {
		c.Zero()
	}
	return i
}

func (i *instruments) countQuarantined(e Entry) {
	consumer := 0
	if len(i.consumers) > 0 {
		consumer = len(i.consumers) - 1
		if n := slices.Index(i.consumers, e.Consumer); n >= 0 {
			consumer = n
		}
	}
	if reason := slices.Index(chain.Reasons, e.Reason); reason >= 0 {
		i.quarantined.Add(1, consumer*len(chain.Reasons)+reason)
	}
	if e.Replays > 0 && e.Reason != ReasonStale { // the handler of a stale message did not run
		i.failedAgain.Add(1, consumer)
	}
}

const countLimit = 100_000

// The gauge is never unregistered, because the middleware is never removed from its router.
func (s *Store) observe() {
	var level telemetry.StatsCache[int64]
	count := func(ctx context.Context) (int64, error) { return s.count(ctx, countLimit) }
	logFailure := func(err error) {
		s.config.Logger.Error("Quarantine could not be counted for its metrics, trying again", err, nil)
	}
	s.instruments.meter.Observe(func(ctx context.Context, o metric.Observer) error {
		if n, ok := level.Get(ctx, count, logFailure); ok {
			o.ObserveInt64(s.instruments.entries, n)
		}
		return nil
	}, s.instruments.entries)
}
