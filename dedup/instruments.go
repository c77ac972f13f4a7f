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

// Outcomes of a message. The values are indexes of outcomes.
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

// Outcomes of work on a day. The values are indexes of dayOutcomes.
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
	if errors.Is(err, errAlreadyHandled) {
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

// instruments are the metrics and spans of an Inbox.
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
			"Messages by outcome. Each attempt of a message counts.",
			telemetry.Label{Key: telemetry.Outcome, Values: outcomes}),
		duration: meter.Durations("once.dedup.duration",
			"Duration of the transaction of a message, including its handler.", telemetry.Done()),
		batches: meter.Sizes("once.dedup.batch.size", "{message}", "Messages that shared a transaction.",
			telemetry.Label{Key: telemetry.Outcome, Values: []string{"committed", "rolled_back"}}),
		swept: meter.Counter("once.dedup.swept", "{row}", "Rows removed because they were older than the retention."),
		days: meter.Counter("once.dedup.days", "{day}", "Day partitions created, emptied or dropped, or blocked by a lock (layout schema.ByDay).",
			telemetry.Label{Key: telemetry.Outcome, Values: dayOutcomes}),
	}
	i.handled.Zero()
	i.swept.Zero()
	i.days.Zero()
	return i
}

// batchEnded records a transaction of a batch.
func (i *instruments) batchEnded(messages int, err error) {
	i.batches.Record(messages, telemetry.Succeeded(err))
}

// call measures one call of the middleware.
type call struct {
	*instruments

	handling telemetry.Handling
	began    time.Time
	outcome  int
}

// begin starts the measurement of a call, and puts its span into the context of
// msg.
func (i *instruments) begin(msg *message.Message, consumer string) *call {
	topic := parked.DeliveryOf(msg.Context()).Topic
	ctx, handling := i.tracer.Handle(msg.Context(), i.traced(), consumer, topic, 0, msg)
	msg.SetContext(ctx)
	return &call{instruments: i, handling: handling, began: time.Now(), outcome: failed} // the outcome if the handler panics
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
