package operate

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestActIsValidated(t *testing.T) {
	for _, test := range []struct {
		act        Act
		valid, let bool
	}{
		{Act{}, false, false},
		{Act{Why: "because"}, false, false},
		{Act{Actor: "ann"}, true, false},
		{Act{Actor: "ann", Why: "because"}, true, true},
	} {
		if err := test.act.Validate(); (err == nil) != test.valid {
			t.Errorf("Validate of %+v: %v", test.act, err)
		}
		if err := test.act.ValidateLoss(); (err == nil) != test.let {
			t.Errorf("ValidateLoss of %+v: %v", test.act, err)
		}
	}
}

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
	for _, test := range []struct {
		rate Rate
		want int
	}{{0, 100}, {1, 1}, {3, 1}, {8, 2}, {400, 100}, {1 << 40, 100}} {
		if got := test.rate.Batch(100); got != test.want {
			t.Errorf("a batch at %d/s has %d messages, not %d", test.rate, got, test.want)
		}
	}
}

func TestPauseKeepsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := Rate(0).Pause(t.Context(), began, 100); err != nil || time.Since(began) != 0 {
			t.Errorf("without a rate: %v after %v", err, time.Since(began))
		}
		if err := Rate(20).Pause(t.Context(), began, 5); err != nil || time.Since(began) != 250*time.Millisecond {
			t.Errorf("5 messages at 20/s: %v after %v", err, time.Since(began))
		}
		if err := Rate(20).Pause(t.Context(), began, 1); err != nil || time.Since(began) != 250*time.Millisecond {
			t.Errorf("a batch that took longer than its share waits no more: %v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		now := time.Now()
		if err := Rate(1).Pause(ctx, now, 100); !errors.Is(err, context.DeadlineExceeded) || time.Since(now) != time.Second {
			t.Errorf("the context ended: %v after %v", err, time.Since(now))
		}
		if err := Rate(0).Pause(ctx, now, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a rate, the context has ended: %v", err)
		}
	})
}
