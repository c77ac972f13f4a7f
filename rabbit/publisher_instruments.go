package rabbit

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/telemetry"
)

// instruments contains the metrics of a Publisher. Several outcomes are counted
// together, just before they are reported.
type instruments struct {
	published, connects          *telemetry.Counter
	confirm                      *telemetry.Durations
	inFlight, connected, blocked metric.Int64Observable
	unobserve                    func()

	tally [len(outcomeNames)]int64 // used only within one call of count
}

// confirmed is the index of confirmed messages in outcomeNames. The index of a message
// with an error is the index of its sentinel error in outcomeKinds.
const confirmed = 0

var (
	outcomeNames = [...]string{
		"confirmed", "returned", "nacked", "refused", "too_large", "invalid", "unknown", "unavailable", "closed",
	}
	outcomeKinds = [len(outcomeNames)]error{
		nil, ErrReturned, ErrNacked, ErrRefused, ErrTooLarge, ErrInvalid, ErrUnknown, ErrUnavailable, ErrClosed,
	}
)

func newInstruments(p *Publisher) *instruments {
	meter := telemetry.NewMeter(p.cfg.MeterProvider, "rabbit")
	i := &instruments{
		published: meter.Counter("once.rabbit.published", "{message}",
			"Messages whose outcome was reported.", telemetry.Label{Key: telemetry.Outcome, Values: outcomeNames[:]}),
		connects: meter.Counter("once.rabbit.connects", "{attempt}",
			"Attempts to connect to the broker.", telemetry.Done()),
		confirm: meter.Durations("once.rabbit.confirm.duration",
			"Time from writing a message to its confirm."),
		inFlight:  meter.Level("once.rabbit.in_flight", "{message}", "Messages sent and not yet confirmed."),
		connected: meter.Level("once.rabbit.connected", "{connection}", "1 while there is a connection to the broker, else 0."),
		blocked:   meter.Level("once.rabbit.blocked", "{connection}", "1 while the broker blocks the connection, else 0."),
	}
	i.published.Zero()
	i.connects.Zero()
	i.unobserve = meter.Observe(func(_ context.Context, o metric.Observer) error {
		inFlight, connected, blocked := p.levels()
		o.ObserveInt64(i.inFlight, inFlight)
		o.ObserveInt64(i.connected, connected)
		o.ObserveInt64(i.blocked, blocked)
		return nil
	}, i.inFlight, i.connected, i.blocked)
	return i
}

// levels returns the values of the gauges, which are read at each export.
func (p *Publisher) levels() (inFlight, connected, blocked int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != nil {
		connected = 1
		if p.session.blocked {
			blocked = 1
		}
	}
	return int64(p.count), connected, blocked
}

// count counts outcomes that are about to be reported. Only the confirm loop
// calls it.
func (i *instruments) count(outcomes []outcome) {
	if len(outcomes) == 0 {
		return
	}
	now, timed := time.Now(), i.confirm.Enabled()
	for _, o := range outcomes {
		series := seriesOf(o.err)
		i.tally[series]++
		if timed && series == confirmed {
			i.confirm.Record(now.Sub(o.pub.sent), 0)
		}
	}
	for series, n := range i.tally {
		if n > 0 {
			i.published.Add(n, series)
		}
	}
	i.tally = [len(outcomeNames)]int64{}
}

// seriesOf returns the index in outcomeNames for err. The parameter err is nil or a
// *PublishError.
func seriesOf(err error) int {
	e, failed := errors.AsType[*PublishError](err)
	if !failed {
		return confirmed
	}
	return slices.Index(outcomeKinds[:], e.kind)
}
