package retry

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// calledAs adds calls to a window: "a:1" is message a, which fails with group 1, and "a" is message
// a, which succeeds.
func calledAs(w *window, at time.Time, calls ...string) (opens bool) {
	for _, c := range calls {
		id, group, _ := strings.Cut(c, ":")
		opens = w.add(id, group, false, at)
	}
	return opens
}

func TestBreakerOpensIfMostMessagesFailForOneReason(t *testing.T) {
	t.Parallel()
	words := strings.Fields
	for name, test := range map[string]struct {
		earlier, calls []string // earlier calls are too old
		want           bool
	}{
		"different messages":         {calls: words("a:1 b:1 c:1"), want: true},
		"too few messages":           {calls: words("a:1 b:1")},
		"one message again":          {calls: words("a:1 a:1 a:1 a:1 a:1")},
		"different reasons":          {calls: words("a:1 b:2 c:3 d:4")},
		"three quarters":             {calls: words("s a:1 b:1 c:1"), want: true},
		"fewer than three quarters":  {calls: words("s r a:1 b:1 c:1")},
		"successes count once":       {calls: words("s s s s s a:1 b:1 c:1"), want: true},
		"success after failure":      {calls: words("s a:1 a b:1 c:1 d:1")},
		"failure after success":      {calls: words("s a a:1 b:1 c:1"), want: true},
		"old calls":                  {earlier: words("a:1 b:1"), calls: words("c:1")},
		"old successes":              {earlier: words("s r q p"), calls: words("a:1 b:1 c:1"), want: true},
		"only the last messages":     {calls: words("k l m n o p q r s t u v a:1 b:1 c:1 d:1 e:1 f:1 g:1 h:1 i:1"), want: true},
		"many successes before them": {calls: words("k l m n o p q r s t u v a:1 b:1 c:1 d:1 e:1 f:1 g:1 h:1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := window{failures: 3}
			calledAs(&w, noon.Add(-windowTime-time.Second), test.earlier...)
			if got := calledAs(&w, noon, test.calls...); got != test.want {
				t.Errorf("the breaker opens: %v, want %v: %+v", got, test.want, w.calls)
			}
		})
	}
}

func TestWindowKnowsWhatFailedCallsHaveCost(t *testing.T) {
	t.Parallel()
	w := window{failures: 3}
	calledAs(&w, noon, "a:1", "a:1")
	w.addRound("a")
	calledAs(&w, noon, "a:1", "b:2", "b:1", "c:1", "c")
	if attempts, rounds := w.take("b"); attempts != 1 || rounds != 0 {
		t.Errorf("b: %d attempts and %d rounds, want 1 and 0: another reason does not count", attempts, rounds)
	}
	want := []parkedrows.Charge{{MessageID: "a", Attempts: 3, Rounds: 1}}
	if got := w.charges("1"); fmt.Sprint(got) != fmt.Sprint(want) || len(w.calls) > 0 {
		t.Errorf("charges are %v, want %v; the window has %v", got, want, w.calls)
	}
	if attempts, _ := w.take("unknown"); attempts != 0 {
		t.Errorf("an unknown message has cost %d attempts", attempts)
	}
	if one := (&window{failures: 3}); !one.add("a", "1", true, noon) || one.calls[0].attempts != 0 {
		t.Errorf("an unavailable service does not open the breaker, or costs an attempt: %+v", one.calls)
	}
	if calledAs(&w, noon, "x:1", "y:1"); !w.add("z", "1", false, noon) || w.calls[2].attempts != 0 {
		t.Errorf("the call that opens the breaker costs an attempt: %+v", w.calls)
	}
}

// Messages that fail for their own reason have opened the breaker. After another message has closed
// it, they do not open it again, so that they are given up on at last.
func TestMessagesThatFailAfterTheBreakerHasClosedDoNotOpenIt(t *testing.T) {
	t.Parallel()
	w := window{failures: 3}
	if !calledAs(&w, noon, "a:1", "b:1", "c:1") {
		t.Fatal("the breaker is not open")
	}
	w.open("c")
	w.charges("1")
	w.open("d") // fails as a probe
	w.close()
	if calledAs(&w, noon, "a:1", "b:1", "c:1", "d:1", "e:1", "f:1") {
		t.Errorf("the breaker opens for the same messages: %+v", w)
	}
	if w.add("d", "1", true, noon) {
		t.Error("an unavailable service opens the breaker for the same message")
	}
	if !calledAs(&w, noon, "g:1") || len(w.charges("1")) != 6 {
		t.Error("three other messages do not open the breaker, or the attempts of the earlier ones are not given back")
	}
	w.close()
	if !calledAs(&w, noon, "a", "a:1", "h:1", "i:1") {
		t.Error("a message that has succeeded since does not count")
	}
}

func TestErrorsOfMessageDoNotCountAsOutage(t *testing.T) {
	t.Parallel()
	err := errors.New("503")
	panics := usercode.Guarded(func() error { panic("bug") })
	exits := usercode.Run(func() error { panic(err) })
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"error":                {err, true},
		"unavailable":          {Unavailable(err), true},
		"after":                {After(err, time.Second), true},
		"permanent":            {Permanent(err), false},
		"own":                  {Own(err), false},
		"own after":            {After(Own(err), time.Second), false},
		"after own":            {Own(After(err, time.Second)), false},
		"wrapped own":          {fmt.Errorf("pay: %w", Own(err)), false},
		"panic":                {panics, false},
		"panic with an error":  {exits, false},
		"end of its goroutine": {usercode.ErrExited, false},
	} {
		if got := outage(chain.Of(test.err), test.err); got != test.want {
			t.Errorf("%s: outage is %v, want %v", name, got, test.want)
		}
	}
	if v := chain.Of(After(Unavailable(err), time.Minute)); !v.Unavailable || v.After != time.Minute {
		t.Errorf("After forgets Unavailable: %+v", v)
	}
	if v := chain.Of(Unavailable(After(err, time.Minute))); !v.Unavailable || v.After != time.Minute {
		t.Errorf("Unavailable forgets After: %+v", v)
	}
	if v := chain.Of(After(Permanent(err), time.Minute)); v.Kind != chain.Failed {
		t.Errorf("After of a permanent error is %+v", v)
	}
	if Unavailable(nil) != nil || Own(nil) != nil || After(nil, 1) != nil {
		t.Error("nil becomes an error")
	}
}

func TestBreakerDecidesNextStep(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	row := func(due int, prober string) *parkedrows.Break { return &parkedrows.Break{Due: at(due), Prober: prober} }
	own := func(until int, told bool) *opening { return &opening{until: at(until), told: told} }
	claimed := func(since int, change func(p *probe)) *probe {
		p := &probe{since: at(since), lease: at(since).Add(lease)}
		if change != nil {
			change(p)
		}
		return p
	}
	ended := func(r result) func(p *probe) {
		return func(p *probe) { p.started, p.ended, p.result = true, true, r }
	}
	started := func(p *probe) { p.started = true }
	for name, test := range map[string]struct {
		state state
		row   *parkedrows.Break
		want  step
		until int
	}{
		"closed":                       {want: waits, until: 3600},
		"healthy again":                {state: state{told: true}, want: heals},
		"opens":                        {state: state{own: own(1, false)}, want: tells},
		"opens, and the time is over":  {state: state{own: own(-1, false)}, want: tells},
		"open for this instance":       {state: state{own: own(5, true)}, want: waits, until: 5},
		"probes for itself":            {state: state{own: own(0, true)}, want: startsOwn},
		"own probe waits":              {state: state{own: own(0, true), probe: &probe{since: at(-60)}}, want: waits, until: 1},
		"own probe failed":             {state: state{own: own(0, true), probe: &probe{ended: true, result: failed}}, want: failsOwn},
		"own probe succeeded":          {state: state{own: own(0, true), probe: &probe{ended: true, result: succeeded}}, want: closesOwn},
		"not due":                      {row: row(1, ""), want: waits, until: 1},
		"due much later":               {row: row(60, ""), want: waits, until: 1},
		"due":                          {row: row(0, "other"), want: claims},
		"its lease has ended":          {row: row(-1, "other"), want: claims},
		"due, but others first":        {row: row(0, "me"), want: waits, until: 1},
		"due, and no other probes":     {row: row(-1, "me"), want: claims},
		"probe waits for its message":  {state: state{probe: claimed(-4, nil)}, row: row(26, "me"), want: waits, until: 1},
		"probe gets no message":        {state: state{probe: claimed(-5, nil)}, row: row(25, "me"), want: passes},
		"probe runs":                   {state: state{probe: claimed(-6, started)}, row: row(24, "me"), want: waits, until: 1},
		"probe runs for long":          {state: state{probe: claimed(-16, started)}, row: row(14, "me"), want: extends},
		"probe failed":                 {state: state{probe: claimed(-1, ended(failed))}, row: row(29, "me"), want: failsProbe},
		"probe succeeded":              {state: state{probe: claimed(-1, ended(succeeded))}, row: row(29, "me"), want: closes},
		"probe was skipped":            {state: state{probe: claimed(-1, ended(skipped))}, row: row(29, "me"), want: tryAgain},
		"probe has no result":          {state: state{probe: claimed(-1, ended(noResult))}, row: row(29, "me"), want: tryAgain},
		"own probe has no result":      {state: state{own: own(0, true), probe: &probe{ended: true}}, want: tryAgain},
		"row replaces an own decision": {state: state{told: true}, row: row(1, ""), want: waits, until: 1},
	} {
		got, until := test.state.next(test.row, "me", lease, noon)
		if got != test.want || until != at(test.until) {
			t.Errorf("%s: step %d until %v, want %d and %v", name, got, until.Sub(noon), test.want, time.Duration(test.until)*time.Second)
		}
	}
}

func TestProbeTakesSourcesByTurns(t *testing.T) {
	t.Parallel()
	p := &probe{since: noon}
	for name, test := range map[string]struct {
		p      *probe
		probes int
		at     time.Duration
		want   parkedrows.Source
	}{
		"no probe":       {nil, 0, 0, 0},
		"not yet":        {p, 0, -1, 0},
		"first":          {p, 0, 0, parkedrows.FromRows},
		"second":         {p, 1, 0, parkedrows.FromTransport},
		"third":          {p, 2, 0, parkedrows.FromRows},
		"no parked one":  {p, 0, sourceTime, parkedrows.FromBoth},
		"queue is empty": {p, 1, sourceTime, parkedrows.FromBoth},
		"started":        {&probe{since: noon, started: true}, 0, sourceTime, 0},
	} {
		if got := test.p.source(test.probes, noon.Add(test.at)); got != test.want {
			t.Errorf("%s: source %b, want %b", name, got, test.want)
		}
	}
}

func TestTimeBetweenProbesGrows(t *testing.T) {
	t.Parallel()
	b := Breaker{}.withDefaults()
	for probes, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
		longest := time.Duration(seconds) * time.Second
		if got := b.wait(probes, 0); got > longest || got < longest*8/10 {
			t.Errorf("after %d probes the wait is %v, want up to 20 %% less than %v", probes, got, longest)
		}
	}
	if got := b.wait(7, time.Hour); got != time.Hour {
		t.Errorf("the wait is %v, want the hour that the service asked for", got)
	}
	if got := (Breaker{MaxWait: 10 * time.Millisecond}).wait(0, 0); got > 10*time.Millisecond {
		t.Errorf("the first wait is %v, want at most MaxWait", got)
	}
}

func TestWrongBreakerIsRefused(t *testing.T) {
	t.Parallel()
	for want, config := range map[string]Config{
		"Breaker.Failures is -1: negative":                     {Breaker: &Breaker{Failures: -1}},
		"Breaker.MaxWait is -1ns: less than 10ms":              {Breaker: &Breaker{MaxWait: -1}},
		"Breaker.MaxWait is 60ns: less than 10ms":              {Breaker: &Breaker{MaxWait: 60}},
		"Breaker is set, but Policy.Delayed is negative: mess": {Breaker: &Breaker{}, Policy: Policy{Delayed: -1}},
	} {
		if err := config.withDefaults().validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	given := &Breaker{}
	if err := (Config{Breaker: given}).withDefaults().validate(); err != nil || given.Failures != 0 || given.MaxWait != 0 {
		t.Errorf("error %v, and the caller's Breaker is %+v", err, given)
	}
}
