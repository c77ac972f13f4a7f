package forwarder

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/dispatch"
)

// Without providers, publishing a message must allocate nothing for metrics and traces,
// even if the message has a sampled trace.
func TestWithoutProvidersNothingIsAllocated(t *testing.T) {
	i := newInstruments(Config{})
	require.False(t, i.tracer.Enabled())
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
	require.Zero(t, testing.AllocsPerRun(100, func() {
		r.span = begin(nil, m, msg) // as the sender calls it if the tracer is not enabled
		i.beginRound()
		i.published(r, Confirmed, time.Now())
		i.endRound()
		i.settled(batch, settled)
		i.stall("t")
	}))
	require.Equal(t, traceparent, msg.Metadata.Get("traceparent"))
}

// If Classify returns a value that is not an Outcome, it must be counted as
// Unavailable, without a panic.
func TestAnOutcomeThatThereIsNotIsCounted(t *testing.T) {
	i := newInstruments(Config{})
	r := result{order: order{Publish: dispatch.Publish{Message: &dispatch.Message{}}}, err: errors.New("failed")}
	i.published(r, Outcome(99), time.Now())
	require.EqualValues(t, 1, i.outcomes.counts[Unavailable])
	require.Equal(t, "invalid", Outcome(99).String())
}
