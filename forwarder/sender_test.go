package forwarder

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/dispatch"
)

type counter int

func (c *counter) Publish(string, ...*message.Message) error { *c++; return nil }
func (c *counter) Close() error                              { return nil }

func TestNothingLeavesWithoutAGateAndALease(t *testing.T) {
	var sent counter
	s := newSender(&sent, 1)
	try := func() error {
		m := &dispatch.Message{Metadata: []byte(`{}`)}
		s.run(order{Publish: dispatch.Publish{Message: m, Ticket: 1}}, s.publish)
		results := s.results.take(nil)
		require.Len(t, results, 1)
		return results[0].err
	}
	require.ErrorIs(t, try(), errNotSent)
	s.gate.Store(true)
	require.ErrorIs(t, try(), errNotSent)
	s.leaseUntil(time.Now().Add(time.Minute))
	require.NoError(t, try())
	s.leaseUntil(time.Now())
	require.ErrorIs(t, try(), errNotSent)
	s.leaseUntil(time.Now().Add(time.Minute))
	s.gate.Store(false)
	require.ErrorIs(t, try(), errNotSent)
	require.EqualValues(t, 1, sent)
}
