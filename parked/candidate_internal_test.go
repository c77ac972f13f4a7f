package parked

import (
	"errors"
	"reflect"
	"testing"
)

// What a call that takes IDs refuses is skipped, or not counted at all, by a call that
// takes a Filter.
func TestMessageIsChangedOnlyInTheRightState(t *testing.T) {
	t.Parallel()
	skipped, handled, changed := Report{Skipped: []int64{7}}, Report{Handled: []int64{7}}, Report{Changed: 1}
	for name, c := range map[string]struct {
		do      Action
		c       candidate
		problem error
		report  Report
	}{
		"run, due later":            {RunNow, candidate{state: Waiting, later: true}, nil, changed},
		"run, due already":          {RunNow, candidate{state: Waiting}, nil, Report{}},
		"run, held":                 {RunNow, candidate{state: Held, later: true}, ErrHeld, Report{}},
		"run, claimed":              {RunNow, candidate{state: Waiting, claimed: true, later: true}, ErrClaimed, skipped},
		"run, busy":                 {RunNow, candidate{state: Waiting, busy: true, later: true}, ErrClaimed, skipped},
		"run, held and busy":        {RunNow, candidate{state: Held, busy: true}, ErrClaimed, Report{}},
		"run, handled":              {RunNow, candidate{state: Waiting, later: true, handled: true}, nil, changed},
		"run, in quarantine":        {RunNow, candidate{state: Quarantined, later: true}, ErrEnded, Report{}},
		"cancel, waiting":           {Cancel, candidate{state: Waiting}, nil, changed},
		"cancel, held":              {Cancel, candidate{state: Held}, nil, changed},
		"cancel, handled":           {Cancel, candidate{state: Waiting, handled: true}, ErrHandled, handled},
		"cancel, claimed":           {Cancel, candidate{state: Waiting, claimed: true}, ErrClaimed, skipped},
		"cancel, claimed, handled":  {Cancel, candidate{state: Waiting, claimed: true, handled: true}, ErrClaimed, skipped},
		"cancel, busy":              {Cancel, candidate{state: Held, busy: true}, ErrClaimed, skipped},
		"cancel, resolved":          {Cancel, candidate{state: Resolved}, ErrEnded, Report{}},
		"discard, discarded":        {Discard, candidate{state: Discarded}, ErrEnded, Report{}},
		"discard, abandoned":        {Discard, candidate{state: Waiting, abandoned: true}, nil, Report{Changed: 1, Abandoned: []int64{7}}},
		"discard, handled, crashed": {Discard, candidate{state: Waiting, abandoned: true, handled: true}, ErrHandled, handled},
	} {
		c.c.id = 7
		if err := c.c.problem(c.do); !errors.Is(err, c.problem) || (err == nil) != (c.problem == nil) {
			t.Errorf("%s: the problem is %v, want %v", name, err, c.problem)
		}
		var report Report
		if chosen := report.count(c.do, c.c); !reflect.DeepEqual(report, c.report) || chosen != (c.report.Changed == 1) {
			t.Errorf("%s: chosen %t, report %+v, want %+v", name, chosen, report, c.report)
		}
	}
}

func TestReportsOfBatchesAddUp(t *testing.T) {
	t.Parallel()
	sum := Report{Changed: 1, Skipped: []int64{1}, Handled: []int64{2}, Abandoned: []int64{3}}
	sum.add(Report{Changed: 2, Skipped: []int64{4}, Handled: []int64{5}, Abandoned: []int64{6}})
	if want := (Report{Changed: 3, Skipped: []int64{1, 4}, Handled: []int64{2, 5}, Abandoned: []int64{3, 6}}); !reflect.DeepEqual(sum, want) {
		t.Errorf("%+v, want %+v", sum, want)
	}
}
