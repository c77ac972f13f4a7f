package sequence

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Trap 79. With HoldForGap, a version that was not applied is late, and not stale,
// unless Config.Late is IgnoreLate.
func TestPlaceOfAVersion(t *testing.T) {
	none := last{}
	after := func(v int64) last { return last{v, 1, true} }
	merge := func(context.Context, *sql.Tx, Gap, *message.Message) error { return nil }
	begunAt := func(v int64) last { return last{v, v, true} }
	for name, c := range map[string]struct {
		config  Config
		last    last
		version int64
		want    int
	}{
		"the first":                      {Config{}, none, 17, next},
		"the next":                       {Config{}, after(17), 18, next},
		"past a gap":                     {Config{}, after(17), 21, next},
		"the same":                       {Config{}, after(17), 17, stale},
		"an older one":                   {Config{}, after(17), 3, stale},
		"held: the first":                {Config{Policy: HoldForGap}, none, 1, next},
		"held: before the first":         {Config{Policy: HoldForGap}, none, 17, early},
		"held: the next":                 {Config{Policy: HoldForGap}, after(17), 18, next},
		"held: past a gap":               {Config{Policy: HoldForGap}, after(17), 19, early},
		"held: the same":                 {Config{Policy: HoldForGap}, after(17), 17, stale},
		"held: one that was applied":     {Config{Policy: HoldForGap}, after(17), 1, stale},
		"held: the same, the only one":   {Config{Policy: HoldForGap}, begunAt(17), 17, stale},
		"held: one that was not applied": {Config{Policy: HoldForGap}, begunAt(17), 16, late},
		"held, late ones ignored":        {Config{Policy: HoldForGap, Late: IgnoreLate}, begunAt(17), 16, stale},
		"merged: one that was not":       {Config{OnStale: merge}, begunAt(17), 16, late},
		"merged: one that was applied":   {Config{OnStale: merge}, begunAt(17), 17, stale},
		"held, merged: was not":          {Config{Policy: HoldForGap, OnStale: merge}, begunAt(17), 16, late},
		"ignored: one that was not":      {Config{}, begunAt(17), 16, stale},
		"held from 1: the first":         {Config{Policy: HoldForGap, First: FromOne}, none, 1, next},
		"held from 1: before the first":  {Config{Policy: HoldForGap, First: FromOne}, none, 2, early},
		"held from 1: after it":          {Config{Policy: HoldForGap, First: FromOne}, after(1), 2, next},
		"held from 0: the first":         {Config{Policy: HoldForGap, First: FromZero}, none, 0, next},
		"held from 0: before the first":  {Config{Policy: HoldForGap, First: FromZero}, none, 1, early},
		"held from 0: the first, again":  {Config{Policy: HoldForGap, First: FromZero}, begunAt(0), 0, stale},
		"ignored: First is not asked":    {Config{First: FromOne}, none, 5, next},
		"held from 1: begun in the past": {Config{Policy: HoldForGap, First: FromOne}, after(7), 8, next},
	} {
		if got := c.config.place(c.last, c.version); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// A held message is checked again when it has waited twice as long as at the last check,
// and at the end of the window. So a wait of two minutes needs only a few checks.
func TestRecheckIntervalsGrow(t *testing.T) {
	c := Config{Window: 2 * time.Minute}
	var waited time.Duration
	looks, middle := 0, false
	for ; waited < c.Window; looks++ {
		middle = middle || waited == c.Window/2
		delay := c.recheckAfter(waited)
		if delay < time.Millisecond || waited+delay > c.Window || delay > max(waited, minRecheck) {
			t.Fatalf("after %v the recheck is in %v", waited, delay)
		}
		waited += delay
	}
	if !middle {
		t.Error("no check is in the middle of the window")
	}
	if waited != c.Window || looks > 15 {
		t.Fatalf("%d looks, the last after %v", looks, waited)
	}
	for _, waited := range []time.Duration{c.Window, 2 * c.Window, 100 * c.Window} {
		if delay := c.recheckAfter(waited); delay < minRecheck || delay > maxRecheck {
			t.Errorf("after %v, behind a lower version, the recheck is in %v", waited, delay)
		}
	}
}
