package rabbit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/telemetry"
)

// instruments count the outcomes of a Publisher together, just before they are reported.
type instruments struct {
	published, connects          *telemetry.Counter
	confirm                      *telemetry.Durations
	sends                        *telemetry.Sends
	inFlight, connected, blocked metric.Int64Observable
	unobserve                    func()

	tally [len(outcomeNames)]int64 // used only within one call of count
}

// confirmed is an index of outcomeNames. That of an error is its index in outcomeKinds.
const confirmed = 0

var (
	outcomeNames = [...]string{
		"confirmed", "returned", "nacked", "refused", "too_large", "invalid", "unknown", "unavailable", "closed", "forbidden",
	}
	outcomeKinds = [len(outcomeNames)]error{
		nil, ErrReturned, ErrNacked, ErrRefused, ErrTooLarge, ErrInvalid, ErrUnknown, ErrUnavailable, ErrClosed, ErrForbidden,
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
		sends:     meter.Sends(systemOf(p.config.Connection.AmqpURI), "publish", outcomeNames[:]),
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

// Only the confirm loop calls count.
func (i *instruments) count(outcomes []outcome) {
	if len(outcomes) == 0 {
		return
	}
	now, timed, timedAll := time.Now(), i.confirm.Enabled(), i.sends.Timed()
	var attempted [len(outcomeNames)]int64
	for _, o := range outcomes {
		series := seriesOf(o.err)
		i.tally[series]++
		if o.pub.sent.IsZero() {
			continue
		}
		attempted[series]++
		if timed && series == confirmed {
			i.confirm.Record(now.Sub(o.pub.sent), 0)
		}
		if timedAll {
			i.sends.Record(now.Sub(o.pub.sent), series)
		}
	}
	for series, n := range i.tally {
		if n > 0 {
			i.published.Add(n, series)
		}
		if attempted[series] > 0 {
			i.sends.Add(attempted[series], series)
		}
	}
	i.tally = [len(outcomeNames)]int64{}
}

// systemOf returns the broker of a URI. If the URI names several nodes, the address is unknown.
func systemOf(uri string) telemetry.System {
	system := telemetry.System{Name: "rabbitmq"}
	if parsed, err := amqp091.ParseURI(uri); err == nil && !strings.Contains(parsed.Host, ",") {
		system.Address, system.Port = parsed.Host, parsed.Port
	}
	return system
}

// MessagingSystem returns what OpenTelemetry calls the system, and the address and port of its
// server, or "" and 0 if the URI names several nodes. A forwarder adds them to its spans.
func (p *Publisher) MessagingSystem() (name, address string, port int) {
	system := systemOf(p.config.Connection.AmqpURI)
	return system.Name, system.Address, system.Port
}

// err is nil or a *PublishError.
func seriesOf(err error) int {
	e, failed := errors.AsType[*PublishError](err)
	if !failed {
		return confirmed
	}
	return slices.Index(outcomeKinds[:], e.kind)
}

type subscriberInstruments struct {
	delivered, settled, recovered *telemetry.Counter
	undecodable, connects         *telemetry.Counter
	handling                      *telemetry.Durations
	consumed                      telemetry.Consumed
	inFlight, connected           metric.Int64Observable
	forbidden                     metric.Int64Observable
	unobserve                     func()
}

// Outcomes of a delivery: indexes of series.
const (
	acked = iota
	requeued
	dropped
	lost
)

// Reasons of an interruption: indexes of series.
const (
	lostConnection = iota
	lostChannel
	lostConsumer
)

func newSubscriberInstruments(s *Subscriber) *subscriberInstruments {
	meter := telemetry.NewMeter(s.cfg.MeterProvider, "rabbit")
	i := &subscriberInstruments{
		delivered: meter.Counter("once.subscriber.delivered", "{message}", "Messages that the broker delivered.",
			telemetry.Label{Key: telemetry.Outcome, Values: []string{"first", "redelivered"}}),
		settled: meter.Counter("once.subscriber.settled", "{message}", "Outcomes of messages that were handed out.",
			telemetry.Label{Key: telemetry.Outcome, Values: []string{
				acked: "acked", requeued: "requeued", dropped: "dropped", lost: "lost",
			}}),
		recovered: meter.Counter("once.subscriber.recovered", "{recovery}", "Interruptions after which consuming continued.",
			telemetry.Label{Key: telemetry.Reason, Values: []string{
				lostConnection: "connection", lostChannel: "channel", lostConsumer: "consumer",
			}}),
		undecodable: meter.Counter("once.subscriber.undecodable", "{message}", "Messages that the marshaler could not read."),
		connects: meter.Counter("once.subscriber.connects", "{attempt}",
			"Attempts to connect to the broker.", telemetry.Done()),
		consumed: meter.Consumed(),
		handling: meter.Durations("once.subscriber.handle.duration", "Time from handing out a message to its ack or nack."),
		inFlight: meter.Level("once.subscriber.in_flight", "{message}", "Messages handed out and not yet acked or nacked."),
		connected: meter.Level("once.subscriber.connected", "{connection}",
			"1 while there is a connection to the broker, else 0."),
		forbidden: meter.Level("once.subscriber.forbidden", "{subscription}",
			"Subscriptions that are interrupted because the user lacks a right."),
	}
	for _, counter := range []*telemetry.Counter{i.delivered, i.settled, i.recovered, i.undecodable, i.connects} {
		counter.Zero()
	}
	i.unobserve = meter.Observe(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(i.inFlight, s.inFlight.Load())
		o.ObserveInt64(i.connected, s.connectionCount())
		o.ObserveInt64(i.forbidden, s.forbiddenCount())
		return nil
	}, i.inFlight, i.connected, i.forbidden)
	return i
}

func (s *Subscriber) connectionCount() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return 0
	}
	return 1
}

func (s *Subscriber) forbiddenCount() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.forbidden))
}

func (i *subscriberInstruments) countDelivery(redelivered bool) {
	if redelivered {
		i.delivered.Add(1, 1)
	} else {
		i.delivered.Add(1, 0)
	}
}

func (i *subscriberInstruments) countSettled(outcome int, took time.Duration) {
	i.settled.Add(1, outcome)
	i.handling.Record(took, 0)
}
