package telemetry

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
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
				if !bounded {
					t.Fatal("bounded is false")
				}
				if got := time.Until(deadline); got != statsTimeout {
					t.Fatalf("time.Until(deadline) is %v, want %v", got, statsTimeout)
				}
				queries++
				return queries, broken
			}, func(err error) { logged = append(logged, err) })
		}
		for range 2 {
			seen, ok := get()
			if !ok {
				t.Fatal("ok is false")
			}
			if seen != 1 {
				t.Fatalf("seen is %d, want 1: the second call uses the cached result", seen)
			}
		}
		<-time.After(statsAge)
		seen, _ := get()
		if seen != 2 {
			t.Fatalf("seen is %d, want 2", seen)
		}

		broken = errors.New("the database is away")
		for range 3 {
			<-time.After(statsAge)
			for range 2 {
				_, ok := get()
				if ok {
					t.Fatal("ok is true: an old value would hide the failure")
				}
			}
		}
		if queries != 5 {
			t.Fatalf("queries is %d, want 5", queries)
		}
		if want := []error{broken}; !reflect.DeepEqual(logged, want) {
			t.Fatalf("logged is %v, want %v: only the first failure is logged", logged, want)
		}

		broken = nil
		<-time.After(statsAge)
		seen, ok := get()
		if !ok {
			t.Fatal("ok is false")
		}
		if seen != 6 {
			t.Fatalf("seen is %d, want 6", seen)
		}
	})
}
