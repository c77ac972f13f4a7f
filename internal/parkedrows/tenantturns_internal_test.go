package parkedrows

import (
	"math"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// dueOf returns the Due of a walk through the class live. The walk found the tenants in
// the list walked. After the walk, the tenants in the list overdue were added.
func dueOf(partial bool, walked []string, overdue ...string) *Due {
	d := &Due{}
	for _, tenant := range walked {
		d.addWalked(0, 1, tenant, true)
	}
	for _, tenant := range overdue {
		d.addOverdue(0, tenant)
	}
	d.partial[0] = partial
	return d
}

func TestSharesAreDistributedInTurn(t *testing.T) {
	t.Parallel()
	behind := dueOf(false, []string{"a"})
	behind.addWalked(0, maxTenants, "m", false)
	for name, c := range map[string]struct {
		due   *Due
		rows  int
		want  []int // rows of each tenant
		after string
	}{
		"fewer rows than tenants":        {dueOf(false, []string{"a", "b", "c"}), 2, []int{1, 1}, "b"},
		"as many":                        {dueOf(false, []string{"a", "b", "c"}), 3, []int{1, 1, 1}, "c"},
		"more":                           {dueOf(false, []string{"a", "b", "c"}), 7, []int{3, 2, 2}, "a"},
		"the walk has ended early":       {dueOf(true, []string{"a", "b", "c"}), 7, []int{3, 2, 2}, "c"},
		"not all of such a walk":         {dueOf(true, []string{"a", "b", "c"}), 2, []int{1, 1}, "b"},
		"the last is an overdue one":     {dueOf(false, []string{"a"}, "z"), 2, []int{1, 1}, "before"},
		"the last is before the overdue": {dueOf(false, []string{"a"}, "z"), 3, []int{2, 1}, "a"},
		"others of the walk are not due": {behind, 1, []int{1}, "m"},
		"nothing is due":                 {&Due{}, 5, nil, ""},
	} {
		turns := &TenantTurns{}
		turns.after[0] = "before"
		var got []int
		for _, s := range turns.shares(c.due, c.rows) {
			got = append(got, s.rows)
		}
		if !slices.Equal(got, c.want) || turns.after[0] != c.after {
			t.Errorf("%s: shares %v, the next walk begins after %q; want %v and %q", name, got, turns.after[0], c.want, c.after)
		}
	}
}

// A class without due rows saves no credit for later. If a walk found no tenant with
// due rows, the next walk begins after the last tenant of this walk.
func TestClassWithoutDueRowsSavesNoCredit(t *testing.T) {
	t.Parallel()
	turns := &TenantTurns{}
	all := &Due{tenants: [len(classes)][]string{{"a"}, {"a"}, {"a"}}}
	order := func(d *Due, rows int) (served []int) {
		for range rows {
			served = append(served, turns.nextClass(d))
		}
		return served
	}
	if got, want := order(all, 7), []int{0, 1, 0, 2, 0, 1, 0}; !slices.Equal(got, want) {
		t.Errorf("the classes are %v, want %v", got, want)
	}
	order(all, 1)
	order(&Due{tenants: [len(classes)][]string{{"a"}}}, 1)
	if turns.credit[1] != 0 || turns.credit[2] != 0 {
		t.Errorf("the credit is %v", turns.credit)
	}
	if got := turns.shares(&Due{walked: [len(classes)]int{1}}, 3); got != nil {
		t.Errorf("without due rows, the shares are %+v", got)
	}
	d := &Due{}
	d.addWalked(1, maxTenants, "m", false)
	if turns.advance(d, 1, 0); turns.after[1] != "m" || !d.Partial() || d.Fresh() {
		t.Errorf("the next walk begins after %q, partial %t, fresh %t", turns.after[1], d.Partial(), d.Fresh())
	}
	if d.addWalked(1, maxTenants-1, "l", false); d.Partial() {
		t.Error("a walk that has seen all tenants counts as partial")
	}
}

// A tenant that had fewer rows than its share gets no share in the next round.
func TestTenantsWithoutFurtherRowsAreRemoved(t *testing.T) {
	t.Parallel()
	d := dueOf(false, []string{"a", "b"}, "b", "z")
	claimed := func(tenant string) Claimed {
		return Claimed{Claim: &Claim{Turn: TenantTurn{PriorityClass: "live", Tenant: tenant}}}
	}
	d.removeExhausted([]share{{0, "a", 2}, {0, "b", 2}, {0, "z", 1}}, []Claimed{claimed("a"), claimed("b"), claimed("b")})
	if !reflect.DeepEqual(d.tenants[0], []string{"b"}) || d.walked[0] != 1 {
		t.Errorf("%q are left, %d of the walk; want b alone", d.tenants[0], d.walked[0])
	}
}

func TestSizeLimitOfARowIsItsPartOfTheBytes(t *testing.T) {
	t.Parallel()
	for sel, want := range map[Select]int{
		{Limit: 2, Bytes: 101}: 50,
		{Limit: 1, Bytes: 101}: math.MaxInt, // a single row of any size is claimed
		{Limit: 5}:             math.MaxInt,
	} {
		if got := sel.maxSize(); got != want {
			t.Errorf("with limit %d and %d bytes it is %d, want %d", sel.Limit, sel.Bytes, got, want)
		}
	}
}

// If a time that was edited by hand is too far away for a time.Duration, Duration
// returns the longest or the shortest possible one.
func TestDurationOfMillisecondsDoesNotOverflow(t *testing.T) {
	t.Parallel()
	const longest = math.MaxInt64 / int64(time.Millisecond)
	for millis, want := range map[int64]time.Duration{
		1: time.Millisecond, -1: -time.Millisecond,
		longest: time.Duration(longest) * time.Millisecond, longest + 1: time.Duration(longest) * time.Millisecond,
		math.MaxInt64: time.Duration(longest) * time.Millisecond, math.MinInt64: -time.Duration(longest) * time.Millisecond,
	} {
		if got := Duration(millis); got != want {
			t.Errorf("%d ms are %v, want %v", millis, got, want)
		}
	}
}

func TestConsumerIsAbsentAfterTwoMinutes(t *testing.T) {
	t.Parallel()
	for unseen, want := range map[time.Duration]bool{2 * time.Minute: false, 2*time.Minute + 1: true} {
		if got := (&Consumer{Unseen: unseen}).Absent(); got != want {
			t.Errorf("unseen for %v: absent is %t", unseen, got)
		}
	}
}

// OtherHandler describes another program, or another handler of this program. It
// returns "" for an instance of the same handler, for an instance that has ended, and
// for an instance whose handler is not known yet.
func TestOtherHandlerIsTold(t *testing.T) {
	t.Parallel()
	own := Consumer{Owner: "me", Handler: "h1"}
	for name, c := range map[string]struct {
		own   Consumer
		other *Consumer
		want  string
	}{
		"nobody":                     {own, nil, ""},
		"itself":                     {own, &Consumer{Owner: "me", Program: "p"}, ""},
		"one that ended":             {own, &Consumer{Owner: "x", Program: "p", Unseen: AbsentAfter + 1}, ""},
		"another program":            {own, &Consumer{Owner: "x", Program: "p", Handler: "h1"}, `program "p"`},
		"another handler":            {own, &Consumer{Owner: "x", Program: program(), Handler: "h2"}, `handler "h2" of another process`},
		"an instance":                {own, &Consumer{Owner: "x", Program: program(), Handler: "h1"}, ""},
		"its handler is not known":   {own, &Consumer{Owner: "x", Program: program()}, ""},
		"the handler is not known":   {Consumer{Owner: "me"}, &Consumer{Owner: "x", Program: program(), Handler: "h2"}, ""},
		"absent, of another program": {own, &Consumer{Owner: "x", Program: "p", Unseen: time.Hour}, ""},
	} {
		if got := c.own.OtherHandler(c.other); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A program that was built by "go run main.go" has no path. Its name is then the name
// of the command.
func TestProgramIsThePathOfItsMainPackage(t *testing.T) {
	t.Parallel()
	for want, info := range map[string]*debug.BuildInfo{
		"example.com/billing":    {Path: "example.com/billing"},
		strings.Repeat("x", 255): {Path: strings.Repeat("x", 256)},
		"worker":                 {Path: "command-line-arguments"},
	} {
		if got := programName(info, "/tmp/build/worker"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, info := range []*debug.BuildInfo{nil, {}} {
		if got := programName(info, strings.Repeat("x", 256)); got != strings.Repeat("x", 255) {
			t.Errorf("without a path: %q", got)
		}
	}
}
