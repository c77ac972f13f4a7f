package forwarder

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestALaneEndsWithItsLastMessage: everything of the key was read, so nothing is
// asked for, and the key takes no memory.
func TestALaneEndsWithItsLastMessage(t *testing.T) {
	b := newBuffer(64)
	b.add(&row{position: 1, key: "key"}, false)
	b.add(&row{position: 2, key: "key"}, false)
	l := b.lanes["key"]
	for range 2 {
		require.Equal(t, l, b.lanes["key"])
		r := l.head
		b.next(l)
		b.forget(r)
		require.Empty(t, b.refills)
	}
	require.Empty(t, b.lanes)
	require.Empty(t, b.rows)
}
