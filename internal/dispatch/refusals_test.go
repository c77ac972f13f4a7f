package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An episode ends when the topic has accepted a message and has refused none for a
// minute. The first refusal of each episode is an error in the log.
func TestRefusalsAreAnErrorOncePerEpisode(t *testing.T) {
	var r refusals
	start := time.Now()
	require.Zero(t, r.accept("t"), "nothing was refused")
	require.True(t, r.refuse("t", start))
	require.True(t, r.refuse("other", start))
	require.False(t, r.refuse("t", start.Add(time.Hour)), "nothing was accepted meanwhile")
	require.Equal(t, 2, r.accept("t"))
	require.Zero(t, r.accept("t"), "it was said")
	require.False(t, r.refuse("t", start.Add(time.Hour+refusalsQuiet-1)))
	require.Zero(t, r.accept("t"), "it was said")
	require.True(t, r.refuse("t", start.Add(time.Hour+2*refusalsQuiet)))
	require.Equal(t, 1, r.accept("t"))

	for i := range 3 * maxRefusals {
		r.refuse(fmt.Sprint(i), start)
		require.LessOrEqual(t, len(r), maxRefusals)
	}
}
