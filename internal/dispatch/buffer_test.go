package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// When the last message of a key is confirmed and all its rows were read, the key uses
// no more memory and wants no refill.
func TestAKeyQueueEndsWithItsLastMessage(t *testing.T) {
	b := newBuffer(64)
	b.add(&Message{Position: 1, Key: "key"}, false)
	b.add(&Message{Position: 2, Key: "key"}, false)
	q := b.queues["key"]
	for range 2 {
		require.Equal(t, q, b.queues["key"])
		m := q.head
		b.advance(q)
		b.forget(m)
		require.Empty(t, b.refills)
	}
	require.Empty(t, b.queues)
	require.Empty(t, b.messages)
}
