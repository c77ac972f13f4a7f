package forwarder

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dispatch"
)

// Without providers, publishing a message must allocate nothing for metrics and traces,
// even if the message has a sampled trace.
func TestWithoutProvidersNothingIsAllocated(t *testing.T) {
	i := newInstruments(Config{})
	if i.tracer.Enabled() {
		t.Fatal("i.tracer.Enabled returned true")
	}
	i.start()
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("traceparent", traceparent)
	m := &dispatch.Message{Topic: "t"}
	r := result{order: order{Publish: dispatch.Publish{Message: m}, at: time.Now()}}
	batch := &dispatch.Settlement{
		Confirmed: []*dispatch.Message{m},
		Charges:   []dispatch.Charge{{Message: m, Cause: dispatch.Unknown}},
		Deaths:    []dispatch.Death{{Message: m, Exhausted: true}},
	}
	settled := dispatch.Settled{Confirmed: true, Charges: true, Deaths: 1}
	got := testing.AllocsPerRun(100, func() {
		r.span = begin(nil, m, msg) // as the sender calls it if the tracer is not enabled
		i.beginRound()
		i.published(r, Confirmed, time.Now())
		i.endRound()
		i.settled(batch, settled)
		i.stall("t")
	})
	if got != 0 {
		t.Fatalf("testing.AllocsPerRun is %v, want 0", got)
	}
	if got := msg.Metadata.Get("traceparent"); got != traceparent {
		t.Fatalf(`msg.Metadata.Get("traceparent") is %q, want %q`, got, traceparent)
	}
}

// If Classify returns a value that is not an Outcome, it must be counted as
// Unavailable, without a panic.
func TestAnOutcomeThatThereIsNotIsCounted(t *testing.T) {
	i := newInstruments(Config{})
	r := result{order: order{Publish: dispatch.Publish{Message: &dispatch.Message{}}}, err: errors.New("failed")}
	i.published(r, Outcome(99), time.Now())
	if i.outcomes.counts[Unavailable] != 1 {
		t.Fatalf("i.outcomes.counts[Unavailable] is %d, want 1", i.outcomes.counts[Unavailable])
	}
	if got := Outcome(99).String(); got != "invalid" {
		t.Fatalf(`Outcome(99) is %q, want "invalid"`, got)
	}
}
