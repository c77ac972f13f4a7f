package rows

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestDistinctSortsAndKeepsItsArgument(t *testing.T) {
	ids := []int64{3, 1, 3, 2, 1}
	got, err := Distinct(ids)
	if err != nil || !slices.Equal(got, []int64{1, 2, 3}) || ids[0] != 3 {
		t.Errorf("got %v, %v; the argument is now %v", got, err, ids)
	}
	if _, err := Distinct(nil); err == nil {
		t.Error("no IDs are accepted")
	}
}

func TestRateBoundsABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct{ rate, want int }{{0, 100}, {1, 1}, {3, 1}, {8, 2}, {400, 100}, {math.MaxInt, 100}} {
			rate := NewRate(test.rate)
			kit.OK(t, rate.Wait(t.Context(), 100))
			if got := rate.Room(100); got != test.want {
				t.Errorf("a batch at %d/s has %d messages, not %d", test.rate, got, test.want)
			}
		}
	})
}

func TestWaitKeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		free := NewRate(0)
		for range 3 {
			if err := free.Wait(t.Context(), 100); err != nil || time.Since(began) != 0 {
				t.Fatalf("without a rate: %v after %v", err, time.Since(began))
			}
			free.Took(100)
		}
		rate := NewRate(20)
		if n := rate.Room(100); n != 1 {
			t.Errorf("%d messages may leave at once, not 1", n)
		}
		for left := 0; left < 101; {
			kit.OK(t, rate.Wait(t.Context(), 100))
			n := rate.Room(100)
			rate.Took(n)
			left += n
			if most := 1 + int(20*time.Since(began).Seconds()); left > most {
				t.Fatalf("%d messages left in %v, not %d", left, time.Since(began), most)
			}
		}
		if took := time.Since(began).Round(time.Millisecond); took > 5250*time.Millisecond {
			t.Errorf("101 messages at 20/s took %v", took)
		}
		time.Sleep(time.Hour) //nolint:forbidigo // a bubble of synctest has its own clock
		if n := rate.Room(100); n != 20 {
			t.Errorf("after an hour without messages %d may leave, not a second's 20", n)
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rate, began := NewRate(1), time.Now()
		rate.Took(100)
		if err := rate.Wait(ctx, 100); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("the context ended: %v after %v", err, time.Since(began))
		}
		if err := NewRate(0).Wait(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a rate, the context has ended: %v", err)
		}
	})
}
