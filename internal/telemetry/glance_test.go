package telemetry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The tables are asked once in a while, however many look, and what they said is
// not told when they no longer answer.
func TestAGlanceIsTakenOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			g      Glance[int]
			asked  int
			broken error
			told   []error
		)
		look := func() (int, bool) {
			return g.Look(t.Context(), func(ctx context.Context) (int, error) {
				deadline, bounded := ctx.Deadline()
				require.True(t, bounded)
				require.Equal(t, lookFor, time.Until(deadline))
				asked++
				return asked, broken
			}, func(err error) { told = append(told, err) })
		}
		for range 2 {
			seen, ok := look()
			require.True(t, ok)
			require.Equal(t, 1, seen, "it was looked at a moment ago")
		}
		<-time.After(lookEvery)
		seen, _ := look()
		require.Equal(t, 2, seen)

		broken = errors.New("the database is away")
		for range 3 {
			<-time.After(lookEvery)
			for range 2 {
				_, ok := look()
				require.False(t, ok, "an old value would say that all is well")
			}
		}
		require.Equal(t, 5, asked)
		require.Equal(t, []error{broken}, told, "it is told once")

		broken = nil
		<-time.After(lookEvery)
		seen, ok := look()
		require.True(t, ok)
		require.Equal(t, 6, seen)
	})
}
