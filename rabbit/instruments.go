package rabbit

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/telemetry"
)

// instruments are what a Publisher tells about itself. Messages are counted
// when they are reported, many at a time.
type instruments struct {
	published, connects          *telemetry.Counter
	confirm                      *telemetry.Durations
	inFlight, connected, blocked metric.Int64Observable
	unobserve                    func()

	tally [len(outcomes)]int64 // of one report
}

// confirmed is the series of messages that were; those of the others are the
// places of what their errors are.
const confirmed = 0

var (
	outcomes = [...]string{
		"confirmed", "returned", "nacked", "refused", "too_large", "invalid", "unknown", "unavailable", "closed",
	}
	kinds = [len(outcomes)]error{
		nil, ErrReturned, ErrNacked, ErrRefused, ErrTooLarge, ErrInvalid, ErrUnknown, ErrUnavailable, ErrClosed,
	}
)

func newInstruments(p *Publisher) *instruments {
	meter := telemetry.NewMeter(p.cfg.MeterProvider, "rabbit")
	i := &instruments{
		published: meter.Counter("once.rabbit.published", "{message}",
			"Messages whose fate was reported.", telemetry.Label{Key: telemetry.Outcome, Values: outcomes[:]}),
		connects: meter.Counter("once.rabbit.connects", "{attempt}",
			"Attempts to connect to the broker.", telemetry.Done()),
		confirm: meter.Durations("once.rabbit.confirm.duration",
			"From writing a message until its confirm."),
		inFlight:  meter.Level("once.rabbit.in_flight", "{message}", "Messages sent and not yet answered."),
		connected: meter.Level("once.rabbit.connected", "{connection}", "1 while there is a connection to the broker, else 0."),
		blocked:   meter.Level("once.rabbit.blocked", "{connection}", "1 while the broker blocks the connection, else 0."),
	}
	i.published.Zero()
	i.connects.Zero()
	i.unobserve = meter.Observe(func(_ context.Context, o metric.Observer) error {
		inFlight, connected, blocked := p.state()
		o.ObserveInt64(i.inFlight, inFlight)
		o.ObserveInt64(i.connected, connected)
		o.ObserveInt64(i.blocked, blocked)
		return nil
	}, i.inFlight, i.connected, i.blocked)
	return i
}

// state is for those who look.
func (p *Publisher) state() (inFlight, connected, blocked int64) {
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

// reports counts verdicts that are about to be reported. It is the settler's.
func (i *instruments) reports(verdicts []verdict) {
	if len(verdicts) == 0 {
		return
	}
	now, timed := time.Now(), i.confirm.Enabled()
	for _, v := range verdicts {
		outcome := outcomeOf(v.err)
		i.tally[outcome]++
		if timed && outcome == confirmed {
			i.confirm.Record(now.Sub(v.flight.sent), 0)
		}
	}
	for outcome, n := range i.tally {
		if n > 0 {
			i.published.Add(n, outcome)
		}
	}
	i.tally = [len(outcomes)]int64{}
}

// outcomeOf is the series of a message with that error, which is nil or a
// *PublishError.
func outcomeOf(err error) int {
	e, failed := errors.AsType[*PublishError](err)
	if !failed {
		return confirmed
	}
	return slices.Index(kinds[:], e.kind)
}
