package forwarder

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/outboxrow"
)

// Without providers a message costs nothing, although it carries a trace that
// is sampled.
func TestWithoutProvidersNothingIsAllocated(t *testing.T) {
	i := newInstruments(Config{})
	require.False(t, i.tracer.Enabled())
	i.start()
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	msg := message.NewMessage("1", nil)
	msg.Metadata.Set("traceparent", traceparent)
	a := answer{order: order{row: &row{topic: "t", sent: time.Now()}}}
	batch := settlement{
		confirmed: []*row{a.row},
		charges:   []charge{{row: a.row, hold: holdUnknown}},
		deaths:    []death{{row: a.row, reason: outboxrow.DeadExhausted}},
	}
	done := settled{confirmed: true, charges: true, deaths: 1}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		a.span = begin(nil, a.row, msg) // what the sender has if the tracer is not enabled
		i.listen()
		i.answered(a, Confirmed, time.Now())
		i.heard()
		i.recorded(batch, done)
		i.stall("t")
	}))
	require.Equal(t, traceparent, msg.Metadata.Get("traceparent"))
}

// A Classify that returns what there is not is no reason to fall over.
func TestAnOutcomeThatThereIsNotIsCounted(t *testing.T) {
	i := newInstruments(Config{})
	i.answered(answer{order: order{row: &row{}}, err: errors.New("failed")}, Outcome(99), time.Now())
	require.EqualValues(t, 1, i.published.counts[Unavailable])
	require.Equal(t, "invalid", Outcome(99).String())
}
