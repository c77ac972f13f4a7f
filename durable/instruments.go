package durable

import (
	"time"

	"github.com/watermill-once/once/internal/telemetry"
)

// What became of a message that arrived. The numbers are those of the
// counter's series.
const (
	stored = iota
	ignored
)

var outcomes = []string{stored: "stored", ignored: "ignored"}

// instruments are what an Intake tells about itself.
type instruments struct {
	received *telemetry.Counter
	duration *telemetry.Durations
	lag      *telemetry.Durations
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "durable")
	i := &instruments{
		received: meter.Counter("once.durable.received", "{message}", "Messages that arrived and were acked, by what became of them.",
			telemetry.Label{Key: telemetry.Outcome, Values: outcomes}),
		duration: meter.Durations("once.durable.store.duration", "How long it took to store a batch.", telemetry.Done()),
		lag:      meter.Durations("once.durable.lag", "From storing a message until it was handled."),
	}
	i.received.Zero()
	return i
}

func (i *instruments) receivedMany(all, fresh int64) {
	i.received.Add(fresh, stored)
	i.received.Add(all-fresh, ignored)
}

// handled notes how long a message has waited for its handler, and that for
// itself.
func (i *instruments) handled(lag time.Duration) { i.lag.Record(lag, 0) }
