package telemetry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStatsCacheQueriesOnceInTwoSecondsAndHidesOldValuesAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			cache   StatsCache[int]
			queries int
			broken  error
			logged  []error
		)
		get := func() (int, bool) {
			return cache.Get(t.Context(), func(ctx context.Context) (int, error) {
				deadline, bounded := ctx.Deadline()
				require.True(t, bounded)
				require.Equal(t, statsTimeout, time.Until(deadline))
				queries++
				return queries, broken
			}, func(err error) { logged = append(logged, err) })
		}
		for range 2 {
			seen, ok := get()
			require.True(t, ok)
			require.Equal(t, 1, seen, "the second call uses the cached result")
		}
		<-time.After(statsAge)
		seen, _ := get()
		require.Equal(t, 2, seen)

		broken = errors.New("the database is away")
		for range 3 {
			<-time.After(statsAge)
			for range 2 {
				_, ok := get()
				require.False(t, ok, "an old value would hide the failure")
			}
		}
		require.Equal(t, 5, queries)
		require.Equal(t, []error{broken}, logged, "only the first failure is logged")

		broken = nil
		<-time.After(statsAge)
		seen, ok := get()
		require.True(t, ok)
		require.Equal(t, 6, seen)
	})
}
