package dedup

import (
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// What became of a message. The numbers are those of the counter's series.
const (
	applied = iota
	duplicate
	collision
	unusableID
	undecodable
	failed
	undecided
)

var outcomes = []string{
	applied: "applied", duplicate: "duplicate", collision: "collision", unusableID: "invalid_id",
	undecodable: "undecodable", failed: "failed", undecided: "undecided",
}

// What was done to a day. The numbers are those of the counter's series.
const (
	created = iota
	emptied
	dropped
	blocked
)

var dayOutcomes = []string{created: "created", emptied: "emptied", dropped: "dropped", blocked: "blocked"}

func outcomeOf(err error) int {
	if err == nil {
		return applied
	}
	if errors.Is(err, errDone) {
		return duplicate
	}
	switch v := disposition.Of(err); {
	case v.Reason == disposition.ReasonCollision:
		return collision
	case v.Reason == disposition.ReasonInvalidID:
		return unusableID
	case v.Reason == disposition.ReasonUndecodable:
		return undecodable
	case v.Kind == disposition.Undecided:
		return undecided
	}
	return failed
}

// instruments are what an Inbox tells about itself.
type instruments struct {
	tracer   telemetry.Tracer
	traced   func() bool
	handled  *telemetry.Counter
	duration *telemetry.Durations
	batches  *telemetry.Sizes
	swept    *telemetry.Counter
	days     *telemetry.Counter
}

func newInstruments(config Config) *instruments {
	meter := telemetry.NewMeter(config.MeterProvider, "dedup")
	tracer := telemetry.NewTracer(config.TracerProvider, "dedup")
	i := &instruments{
		tracer: tracer,
		traced: sync.OnceValue(tracer.Enabled),
		handled: meter.Counter("once.dedup.handled", "{message}",
			"What became of messages; one that is tried again counts again.",
			telemetry.Label{Key: telemetry.Outcome, Values: outcomes}),
		duration: meter.Durations("once.dedup.duration",
			"How long the transaction of a message took, its handler included.", telemetry.Done()),
		batches: meter.Sizes("once.dedup.batch.size", "{message}", "How many messages shared a transaction.",
			telemetry.Label{Key: telemetry.Outcome, Values: []string{"committed", "rolled_back"}}),
		swept: meter.Counter("once.dedup.swept", "{row}", "Rows that were removed because they were too old."),
		days: meter.Counter("once.dedup.days", "{day}", "What was done to the days of an inbox that is laid out by day.",
			telemetry.Label{Key: telemetry.Outcome, Values: dayOutcomes}),
	}
	i.handled.Zero()
	i.swept.Zero()
	i.days.Zero()
	return i
}

// turn is told of each transaction of a batch.
func (i *instruments) turn(messages int, err error) {
	i.batches.Record(messages, telemetry.Succeeded(err))
}

// call is one call of the middleware as its instruments see it.
type call struct {
	*instruments

	handling telemetry.Handling
	began    time.Time
	outcome  int
}

// begin begins a call. The context of msg has its trace from here on.
func (i *instruments) begin(msg *message.Message, consumer string) *call {
	topic := parked.DeliveryOf(msg.Context()).Topic
	ctx, handling := i.tracer.Handle(msg.Context(), i.traced(), consumer, topic, 0, msg)
	msg.SetContext(ctx)
	return &call{instruments: i, handling: handling, began: time.Now(), outcome: failed} // it may panic
}

func (c *call) end() {
	c.handled.Add(1, c.outcome)
	switch c.outcome {
	case applied:
		c.duration.Record(time.Since(c.began), telemetry.Ok)
	case failed, undecided:
		c.duration.Record(time.Since(c.began), telemetry.Failed)
	}
	c.handling.End(outcomes[c.outcome], c.outcome > duplicate)
}
