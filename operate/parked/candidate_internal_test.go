package parked

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// If a call with IDs refuses to change a message, a call with a Filter skips the
// message, or does not count it.
func TestMessageIsChangedOnlyInTheRightState(t *testing.T) {
	t.Parallel()
	skipped, handled, changed := operate.Report{Skipped: []int64{7}}, operate.Report{Handled: []int64{7}}, operate.Report{Changed: 1}
	for name, c := range map[string]struct {
		do      Action
		c       candidate
		problem error
		report  operate.Report
	}{
		"run, due later":           {RunNow, candidate{state: Waiting, later: true}, nil, changed},
		"run, due already":         {RunNow, candidate{state: Waiting}, nil, operate.Report{}},
		"run, held":                {RunNow, candidate{state: Held, later: true}, ErrHeld, operate.Report{}},
		"run, claimed":             {RunNow, candidate{state: Waiting, claimed: true, later: true}, operate.ErrClaimed, skipped},
		"run, busy":                {RunNow, candidate{state: Waiting, busy: true, later: true}, operate.ErrClaimed, skipped},
		"run, held and busy":       {RunNow, candidate{state: Held, busy: true}, operate.ErrClaimed, operate.Report{}},
		"run, handled":             {RunNow, candidate{state: Waiting, later: true, handled: true}, nil, changed},
		"run, in quarantine":       {RunNow, candidate{state: Quarantined, later: true}, ErrEnded, operate.Report{}},
		"cancel, waiting":          {Cancel, candidate{state: Waiting}, nil, changed},
		"cancel, held":             {Cancel, candidate{state: Held}, nil, changed},
		"cancel, handled":          {Cancel, candidate{state: Waiting, handled: true}, ErrHandled, handled},
		"cancel, claimed":          {Cancel, candidate{state: Waiting, claimed: true}, operate.ErrClaimed, skipped},
		"cancel, claimed, handled": {Cancel, candidate{state: Waiting, claimed: true, handled: true}, operate.ErrClaimed, skipped},
		"cancel, busy":             {Cancel, candidate{state: Held, busy: true}, operate.ErrClaimed, skipped},
		"cancel, resolved":         {Cancel, candidate{state: Resolved}, ErrEnded, operate.Report{}},
		"discard, discarded":       {Discard, candidate{state: Discarded}, ErrEnded, operate.Report{}},
		"discard, abandoned": {
			Discard, candidate{state: Waiting, abandoned: true}, nil, operate.Report{Changed: 1, Abandoned: []int64{7}},
		},
		"discard, handled, crashed": {Discard, candidate{state: Waiting, abandoned: true, handled: true}, ErrHandled, handled},
	} {
		c.c.id = 7
		if err := c.c.problem(c.do); !errors.Is(err, c.problem) || (err == nil) != (c.problem == nil) {
			t.Errorf("%s: the problem is %v, want %v", name, err, c.problem)
		}
		var report operate.Report
		if chosen := count(&report, c.do, c.c); !reflect.DeepEqual(report, c.report) || chosen != (c.report.Changed == 1) {
			t.Errorf("%s: chosen %t, report %+v, want %+v", name, chosen, report, c.report)
		}
	}
}

func TestReportsOfBatchesAddUp(t *testing.T) {
	t.Parallel()
	sum := operate.Report{Changed: 1, Skipped: []int64{1}, Handled: []int64{2}, Abandoned: []int64{3}}
	rows.AddReport(&sum, operate.Report{Changed: 2, Skipped: []int64{4}, Handled: []int64{5}, Abandoned: []int64{6}})
	want := operate.Report{Changed: 3, Skipped: []int64{1, 4}, Handled: []int64{2, 5}, Abandoned: []int64{3, 6}}
	if !reflect.DeepEqual(sum, want) {
		t.Errorf("%+v, want %+v", sum, want)
	}
}

// A lock that is not free, and a deadlock, mean that another transaction is changing the
// message.
func TestOtherTransactionInTheWayIsNoticed(t *testing.T) {
	t.Parallel()
	for code, want := range map[pqerror.Code]bool{"55P03": true, "40P01": true, "40001": false, "23505": false} {
		if got := contended(&pq.Error{Code: code}); got != want {
			t.Errorf("%s: contended is %t, want %t", code, got, want)
		}
	}
}

// A Filter has a condition if any field except the position of the page is set.
func TestEachFieldOfAFilterIsACondition(t *testing.T) {
	t.Parallel()
	m := &Messages{table: tableOf(rows.DB{})}
	for _, f := range []operate.Filter{
		{IDs: []int64{}},
		{Consumer: "c"},
		{Topic: "t"},
		{MessageID: "m"},
		{Tenant: "a"},
		{OrderingKey: "k"},
		{State: Waiting},
		{CreatedAfter: time.Unix(1, 0)},
		{CreatedBefore: time.Unix(1, 0)},
	} {
		if err := m.checkChange(f, Cancel); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
		if f.All = true; m.table.Check(f) == nil {
			t.Errorf("%+v: All is accepted together with a condition", f)
		}
	}
	for _, f := range []operate.Filter{{}, {AfterID: 7}, {Limit: 7}} {
		if err := m.checkChange(f, Cancel); err == nil || !strings.Contains(err.Error(), "has no condition") {
			t.Errorf("%+v: %v", f, err)
		}
		if f.All = true; m.checkChange(f, Cancel) != nil {
			t.Errorf("%+v: %v", f, m.checkChange(f, Cancel))
		}
	}
	if err := m.table.Check(operate.Filter{CreatedAfter: time.Unix(7, 0), CreatedBefore: time.Unix(7, 0)}); err == nil {
		t.Error("an empty period is accepted")
	}
}
