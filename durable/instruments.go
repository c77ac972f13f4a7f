package durable

import (
	"time"

	"github.com/watermill-once/once/internal/telemetry"
)

// Outcomes of a message that arrives: indexes of outcomes.
const (
	stored = iota
	ignored
)

var outcomes = []string{stored: "stored", ignored: "ignored"}

type instruments struct {
	received *telemetry.Counter
	duration *telemetry.Durations
	lag      *telemetry.Durations
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "durable")
	i := &instruments{
		received: meter.Counter("once.durable.received", "{message}", "Messages that arrived and were acked, by their outcome.",
			telemetry.Label{Key: telemetry.Outcome, Values: outcomes}),
		duration: meter.Durations("once.durable.store.duration", "Time to store a batch.", telemetry.Done()),
		lag:      meter.Delays("once.durable.lag", "Time from the storing of a message to the end of its handler."),
	}
	i.received.Zero()
	return i
}

func (i *instruments) receivedMany(all, added int64) {
	i.received.Add(added, stored)
	i.received.Add(all-added, ignored)
}

func (i *instruments) handled(lag time.Duration) { i.lag.Record(lag, 0) }
