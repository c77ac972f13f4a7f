package rabbit

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/watermill-once/once/internal/telemetry"
)

// subscriberInstruments contains the metrics of a Subscriber.
type subscriberInstruments struct {
	delivered, settled, recovered *telemetry.Counter
	undecodable, connects         *telemetry.Counter
	handling                      *telemetry.Durations
	inFlight, connected           metric.Int64Observable
	unobserve                     func()
}

// Outcomes of a delivery. The values are indexes of series.
const (
	acked = iota
	requeued
	dropped
	lost
)

// Reasons why consuming was interrupted. The values are indexes of series.
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
		handling: meter.Durations("once.subscriber.handle.duration", "Time from handing out a message to its ack or nack."),
		inFlight: meter.Level("once.subscriber.in_flight", "{message}", "Messages handed out and not yet acked or nacked."),
		connected: meter.Level("once.subscriber.connected", "{connection}",
			"1 while there is a connection to the broker, else 0."),
	}
	for _, counter := range []*telemetry.Counter{i.delivered, i.settled, i.recovered, i.undecodable, i.connects} {
		counter.Zero()
	}
	i.unobserve = meter.Observe(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(i.inFlight, s.inFlight.Load())
		o.ObserveInt64(i.connected, s.connectionCount())
		return nil
	}, i.inFlight, i.connected)
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
