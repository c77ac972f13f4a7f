package sequence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
)

// Trap 79. With HoldForGap, a version that was not applied is late, and not stale.
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
		"merged: one that was not":       {Config{OnStale: merge}, begunAt(17), 16, late},
		"merged: one that was applied":   {Config{OnStale: merge}, begunAt(17), 17, stale},
		"held, merged: was not":          {Config{Policy: HoldForGap, OnStale: merge}, begunAt(17), 16, late},
		"ignored: one that was not":      {Config{}, begunAt(17), 16, stale},
		"held from 1: the first":         {Config{Policy: HoldForGap}, none, 1, next},
		"held from 1: before the first":  {Config{Policy: HoldForGap}, none, 2, early},
		"held from 1: after it":          {Config{Policy: HoldForGap}, after(1), 2, next},
		"held from 0: the first":         {Config{Policy: HoldForGap, FromZero: true}, none, 0, next},
		"held from 0: before the first":  {Config{Policy: HoldForGap, FromZero: true}, none, 1, early},
		"held from 0: the first, again":  {Config{Policy: HoldForGap, FromZero: true}, begunAt(0), 0, stale},
		"ignored: FromZero is not asked": {Config{FromZero: true}, none, 5, next},
		"held from 1: begun in the past": {Config{Policy: HoldForGap}, after(7), 8, next},
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
	if delay := (Config{Window: time.Second}).recheckAfter(2 * time.Second); delay != 250*time.Millisecond {
		t.Errorf("after two windows of a second, the recheck is in %v, want an eighth of the wait", delay)
	}
}

// A version is either parsed exactly or refused. The method Config.place must then
// classify the version correctly, relative to the last applied version.
func FuzzVersion(f *testing.F) {
	f.Add("order", "1", "7", 1, int64(6))
	f.Add("order", "1", "9223372036854775807", 2, int64(math.MaxInt64))
	f.Add("order", "\x00", "-1", 0, int64(0))
	f.Add("", "", "1e3", 1, int64(0))
	f.Add("a", "b", "+0007", 2, int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, kind, id, version string, first int, known int64) {
		c := Config{Policy: HoldForGap, FromZero: uint(first)%2 == 1}
		msg := message.NewMessage("id", nil)
		msg.Metadata = message.Metadata{meta.AggregateType: kind, meta.AggregateID: id, meta.AggregateVersion: version}
		a, ok, err := c.aggregateOf(msg)
		if err != nil && (ok || !errors.Is(err, ErrInvalidVersion)) {
			t.Fatalf("%v, %v", ok, err)
		}
		if !ok {
			return
		}
		if n, err := strconv.ParseInt(version, 10, 64); err != nil || n != a.version || n < c.first() {
			t.Errorf("%q is read as %d", version, a.version)
		}
		switch place := c.place(last{version: known, completeFrom: min(known, 1), known: true}, a.version); {
		case a.version <= known && a.version >= min(known, 1) && place != stale:
			t.Errorf("%d after %d is %d, not stale", a.version, known, place)
		case a.version < min(known, 1) && place != late:
			t.Errorf("%d after %d is %d, not late", a.version, known, place)
		case a.version > known && place == stale:
			t.Errorf("%d after %d is stale", a.version, known)
		case place == next && a.version-1 != known:
			t.Errorf("%d after %d is next", a.version, known)
		}
	})
}

// A message waits behind held lower versions for four windows at most.
func TestLowerVersionsDelayAMessageForFourWindowsAtMost(t *testing.T) {
	t.Parallel()
	r := &Resequencer{config: Config{Policy: HoldForGap, Window: time.Second, AfterWindow: Apply}} // it cannot look for lower versions
	claim := &parkedrows.Claim{Waited: 4 * time.Second}
	outcome, filled, err := r.early(t.Context(), delivered{delivery: &parkedrows.Delivery{Subscribed: true, Claim: claim}}, last{})
	if outcome != appliedWithGap || filled || err != nil {
		t.Errorf("the outcome is %d, filled %t, %v; want %d", outcome, filled, err, appliedWithGap)
	}
}

// stateError is an error of PostgreSQL with this code.
type stateError string

func (e stateError) Error() string { return "state " + string(e) }

func (e stateError) SQLState() string { return string(e) }

// A statement of this package can fail because of the message: the database cannot store
// the name of its aggregate, or its transaction had failed before. Other errors say nothing
// about the message.
func TestStatementErrorSaysWhetherTheMessageIsTheCause(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]chain.Error{
		"22P05": {Kind: chain.Permanent},
		"25P02": {Kind: chain.Failed},
		"40001": {Kind: chain.Undecided, NotCalled: true},
		"57P01": {Kind: chain.Undecided, NotCalled: true},
	} {
		if v := chain.Of(statementError("write the version", stateError(state))); v.Kind != want.Kind || v.NotCalled != want.NotCalled {
			t.Errorf("%s: kind %d, not called %t; want kind %d, not called %t", state, v.Kind, v.NotCalled, want.Kind, want.NotCalled)
		}
	}
}

// A missing first version is logged after ten seconds, or in the middle of a short window.
func TestMissingFirstVersionIsLoggedBeforeTheWindowEnds(t *testing.T) {
	t.Parallel()
	for window, after := range map[time.Duration]time.Duration{time.Minute: 10 * time.Second, 10 * time.Second: 5 * time.Second} {
		for _, waited := range []time.Duration{after - 1, after} {
			var logs kit.Logs
			r := &Resequencer{config: Config{Policy: HoldForGap, Window: window, Logger: &logs}.withDefaults()}
			r.logMissingFirst(delivered{delivery: &parkedrows.Delivery{}}, Gap{Version: 3, First: 1, Waited: waited})
			if got := logs.Has("Messages wait for the first version"); got != (waited == after) {
				t.Errorf("window %v: after %v, it is logged: %t", window, waited, got)
			}
		}
	}
}

// If no version was applied, Gap.Last is the number before the first version.
func TestGapOfANewAggregate(t *testing.T) {
	t.Parallel()
	for fromZero, first := range map[bool]int64{true: 0, false: 1} {
		r := &Resequencer{config: Config{Policy: HoldForGap, FromZero: fromZero}}
		gap := r.gap(delivered{aggregate: aggregate{"account", "a", 3}, delivery: &parkedrows.Delivery{}}, last{})
		if gap.First != first || gap.Last != first-1 || gap.Version != 3 {
			t.Errorf("gap %+v, want the first version to be %d", gap, first)
		}
		want := fmt.Sprintf("came, and no earlier version in 0s: versions must begin at %d", first)
		if text := (&gapError{gap}).Error(); !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
}

func TestLateVersionExtendsTheCompleteVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[int64]last{4: {6, 4, true}, 3: {6, 5, true}, 6: {6, 5, true}} {
		if got := (Config{}).with(last{6, 5, true}, version, false); got != want {
			t.Errorf("after version %d: %+v, want %+v", version, got, want)
		}
	}
}

func TestSequenceIsSplitIntoTypeAndID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		aggregate{kind: "account", id: "a:1"}.sequence(): {"account", "a:1"},
		"0:a": {"", "a"}, "-1:a": {"", "-1:a"}, "2:a": {"", "2:a"}, "a": {"", "a"}, "": {"", ""}, // changed by hand
	} {
		if kind, id := split(text); kind != want[0] || id != want[1] {
			t.Errorf("%q is split into %q and %q, want %q", text, kind, id, want)
		}
	}
}
