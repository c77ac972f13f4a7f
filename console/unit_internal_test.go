package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/status"
)

// sides returns the two sides of a comparison as texts.
func sides(lines []diffLine) (old, edited string) {
	text := func(t diffText) string {
		if t.Middle == "" {
			return t.Before + t.After
		}
		return t.Before + "[" + t.Middle + "]" + t.After
	}
	for _, l := range lines {
		if l.Gap > 0 {
			old, edited = old+"…\n", edited+"…\n"
			continue
		}
		old, edited = old+text(l.Old)+"\n", edited+text(l.New)+"\n"
	}
	return old, edited
}

func TestDiff(t *testing.T) {
	for name, c := range map[string]struct{ before, after, old, edited string }{
		"equal":            {"a\nb", "a\nb", "", ""},
		"a character":      {"a\nbcd\ne", "a\nbXd\ne", "a\nb[c]d\ne\n", "a\nb[X]d\ne\n"},
		"a line is added":  {"a\nc", "a\nb\nc", "a\n\nc\n", "a\n[b]\nc\n"},
		"a line is gone":   {"a\nb\nc", "a\nc", "a\n[b]\nc\n", "a\n\nc\n"},
		"a repeated line":  {"x\nx", "x\nx\nx", "x\nx\n\n", "x\nx\n[x]\n"},
		"the last newline": {"a\n", "a", "a[⏎]\n", "a\n"},
		"everything":       {"", "a\nb", "\n\n", "[a]\n[b]\n"},
		"far lines":        {strings.Repeat("x\n", 20) + "a", strings.Repeat("x\n", 20) + "b", "…\nx\nx\nx\n[a]\n", "…\nx\nx\nx\n[b]\n"},
		"two changes":      {"a\nb\nc\nd", "A\nb\nc\nD", "[a]\nb\nc\n[d]\n", "[A]\nb\nc\n[D]\n"},
	} {
		old, edited := sides(diff(c.before, c.after))
		if old != c.old {
			t.Errorf("%s: old is %q, want %q", name, old, c.old)
		}
		if edited != c.edited {
			t.Errorf("%s: edited is %q, want %q", name, edited, c.edited)
		}
	}
	large := strings.Repeat("a\n", 5000)
	got := diff("x\n"+large, "x\n"+strings.ReplaceAll(large, "a", "b")) // too large to be compared line by line
	if n := len(got); n != mostCompared+2 || got[n-1].Rest != 5000-mostCompared {
		t.Errorf("len(diff) is %d, want %d; the last line is %+v", n, mostCompared+2, got[n-1])
	}
	got = diff(large+"end", strings.ReplaceAll(large, "a", "b")+"end")
	if last := got[len(got)-1]; last.OldNumber != 5001 || last.NewNumber != 5001 {
		t.Errorf("the line behind is %+v, want number 5001", last)
	}
	before := strings.Split(strings.Repeat("x\n", 40), "\n")
	before[20] = "a"
	after := slices.Clone(before)
	after[20] = "b"
	got = diff(strings.Join(before, "\n"), strings.Join(after, "\n"))
	if len(got) != 9 || got[0].Gap != 17 || got[4].OldNumber != 21 || got[4].NewNumber != 21 || got[8].Gap != 16 {
		t.Errorf("diff is %+v", got)
	}
}

func TestASeriesIsBounded(t *testing.T) {
	var s series
	now := time.Unix(0, 0)
	if got := s.chart("n"); got != "" {
		t.Errorf(`s.chart("n") is %q, want nothing`, got)
	}
	for i := range 10 * mostSamples {
		s.add(now.Add(time.Duration(i)*sampleEvery), float64(i))
	}
	if len(s.times) > mostSamples {
		t.Errorf("len(s.times) is %d, want at most %d", len(s.times), mostSamples)
	}
	if len(s.times) < mostSamples/2 {
		t.Errorf("len(s.times) is %d, want at least %d", len(s.times), mostSamples/2)
	}
	if s.times[0] != 0 {
		t.Errorf("s.times[0] is %d, want 0", s.times[0])
	}
	for i := 1; i < len(s.times); i++ {
		if s.times[i-1] >= s.times[i] {
			t.Errorf("s.times[i-1] is %d, want less than %d", s.times[i-1], s.times[i])
		}
	}
	if got, want := s.chart("n"), `{"labels":["n"],"data":[[0,`; !strings.Contains(got, want) {
		t.Errorf("%q is missing:\n%s", want, got)
	}
}

func TestASeriesWithAWindowForgets(t *testing.T) {
	s := series{window: time.Hour}
	for i := range 3 * 3600 / 5 {
		s.add(time.Unix(int64(i*5), 0), float64(i))
	}
	if len(s.times) > mostSamples {
		t.Errorf("len(s.times) is %d, want at most %d", len(s.times), mostSamples)
	}
	if math.Abs(float64(s.times[len(s.times)-1]-s.times[0])-3600) > 10 {
		t.Errorf("s.times[len(s.times)-1]-s.times[0] is %v, want 3600, give or take 10", s.times[len(s.times)-1]-s.times[0])
	}
	if len(s.values[0]) != len(s.times) {
		t.Errorf("%d values, want %d: %v", len(s.values[0]), len(s.times), s.values[0])
	}
}

func TestRatesAreAveraged(t *testing.T) {
	var f flow
	at := time.Unix(1000, 0)
	_, _, known := f.add(status.Flow{At: at, Written: 100, Removed: 90})
	if known {
		t.Error("known is true")
	}
	for i := 1; i <= 60; i++ {
		in, out, known := f.add(status.Flow{At: at.Add(time.Duration(i) * time.Second), Written: int64(100 + 50*i), Removed: int64(90 + 40*i)})
		if !known {
			t.Error("known is false")
		}
		if math.Abs(in-50) > 0.001 {
			t.Errorf("in is %v, want 50, give or take 0.001", in)
		}
		if math.Abs(out-40) > 0.001 {
			t.Errorf("out is %v, want 40, give or take 0.001", out)
		}
	}
	if len(f.samples) >= 20 {
		t.Errorf("len(f.samples) is %d, want less than 20", len(f.samples))
	}
	_, _, known = f.add(status.Flow{At: at.Add(time.Hour), Written: 3}) // the statistics were reset
	if known {
		t.Error("known is true")
	}
	if got := perSecond(0.01); got != "<0.1" {
		t.Errorf(`perSecond(0.01) is %q, want "<0.1"`, got)
	}
	if got := perSecond(2.5); got != "2.5" {
		t.Errorf(`perSecond(2.5) is %q, want "2.5"`, got)
	}
	if got := perSecond(1234.5); got != "1,234" {
		t.Errorf(`perSecond(1234.5) is %q, want "1,234"`, got)
	}
	if got := perSecond(0); got != "0" {
		t.Errorf(`perSecond(0) is %q, want "0"`, got)
	}
}

func TestThePaceOfAReplay(t *testing.T) {
	var p paces
	at := time.Unix(1000, 0)
	if got := p.add(7, at, 0); got != 0 {
		t.Errorf("p.add(7, at, 0) is %v, want 0", got)
	}
	for i := 1; i <= 100; i++ {
		if got := p.add(7, at.Add(time.Duration(i)*time.Second), 20*i); math.Abs(got-20) > 0.001 {
			t.Errorf("p.add is %v, want 20, give or take 0.001", got)
		}
		p.add(7, at.Add(time.Duration(i)*time.Second+time.Millisecond), 20*i) // a second browser
	}
	if len(p.all[7]) > 17 {
		t.Errorf("len(p.all[7]) is %d, want at most 17", len(p.all[7]))
	}
	if got := p.add(7, at.Add(time.Hour), 3); got != 0 { // the replay began again
		t.Errorf("p.add is %v, want 0", got)
	}
	for id := range int64(1000) {
		p.add(id, at, 0)
	}
	if len(p.all) > mostPaces {
		t.Errorf("len(p.all) is %d, want at most %d", len(p.all), mostPaces)
	}
}

func TestNumbersAndTimesForPeople(t *testing.T) {
	if got := count(1234567); got != "1,234,567" {
		t.Errorf(`count(1234567) is %q, want "1,234,567"`, got)
	}
	if got := count(-123); got != "-123" {
		t.Errorf(`count(-123) is %q, want "-123"`, got)
	}
	if got := count(999); got != "999" {
		t.Errorf(`count(999) is %q, want "999"`, got)
	}
	if got := plural(1, "message", "messages"); got != "1 message" {
		t.Errorf(`plural(1, "message", "messages") is %q, want "1 message"`, got)
	}
	if got := ago(0); got != "now" {
		t.Errorf(`ago(0) is %q, want "now"`, got)
	}
	if got := ago(-5 * time.Minute); got != "in 5 min" {
		t.Errorf(`ago(-5*time.Minute) is %q, want "in 5 min"`, got)
	}
	if got := ago(30 * time.Hour); got != "30 h ago" {
		t.Errorf(`ago(30*time.Hour) is %q, want "30 h ago"`, got)
	}
	if got := ago(80 * time.Hour); got != "3 days ago" {
		t.Errorf(`ago(80*time.Hour) is %q, want "3 days ago"`, got)
	}
	if got := size(1536); got != "1.5 KiB" {
		t.Errorf(`size(1536) is %q, want "1.5 KiB"`, got)
	}
}

// The overview asks for a forwarder only if messages wait that no dead letter blocks. It
// names the dead letters that block ordering keys.
func TestOverviewNamesTheDeadLetterThatBlocksAKey(t *testing.T) {
	t.Parallel()
	blocked := overview{
		Oldest: time.Hour, BlockedByDead: status.Count{N: 7},
		DeadKeys: []status.DeadKey{{OrderingKey: "order-17", Letter: 3}},
	}
	stuck := blocked
	stuck.OldestFree = time.Hour
	for name, of := range map[string]struct {
		overview overview
		asks     bool
	}{"blocked": {blocked, false}, "stuck": {stuck, true}} {
		of.overview.judge()
		var all strings.Builder
		for _, a := range of.overview.Attention {
			all.WriteString(a.What + " " + a.Why + " " + a.Link + "\n")
		}
		for part, want := range map[string]bool{
			"Does a forwarder run": of.asks, `Ordering key "order-17" is blocked by dead letter 3`: true, "letter?id=3": true,
			"7 ordering keys are blocked by dead letters": true,
		} {
			if got := strings.Contains(all.String(), part); got != want {
				t.Errorf("%s: %q is said: %t, want %t:\n%s", name, part, got, want, all.String())
			}
		}
	}
}

func newTestJobs(t *testing.T) (*jobs, *kit.Logs) {
	t.Helper()
	logs := &kit.Logs{}
	all := newJobs(logs)
	t.Cleanup(all.close)
	return all, logs
}

// untilStopped is a change that runs until its context ends.
func untilStopped(ctx context.Context, progress func(report)) (report, error) {
	progress(report{Done: 1})
	<-ctx.Done()
	return report{Done: 2}, ctx.Err()
}

func TestAPanicEndsTheChangeAndNotTheService(t *testing.T) {
	all, logs := newTestJobs(t)
	j := &job{Title: "Test"}
	kit.OK(t, all.start(j, func(_ context.Context, progress func(report)) (report, error) {
		progress(report{Done: 7})
		panic("secret")
	}))
	<-j.ended
	state := j.State()
	if state.Running() {
		t.Error("state.Running returned true")
	}
	if state.Report.Done != 7 {
		t.Errorf("state.Report.Done is %d, want 7", state.Report.Done)
	}
	if got, want := state.Problem(), "It failed. The log of the service says why."; got != want {
		t.Errorf("state.Problem is %q, want %q", got, want)
	}
	if !logs.Has("Console change panicked", "secret") {
		t.Error(`logs.Has("Console change panicked", "secret") returned false`)
	}
}

func TestOnlySomeChangesRunAtATime(t *testing.T) {
	all, _ := newTestJobs(t)
	var running []*job
	for i := range mostJobs {
		j := &job{Title: "Test", Who: operate.Act{Actor: "ann"}, lock: fmt.Sprint(i)}
		kit.OK(t, all.start(j, untilStopped))
		running = append(running, j)
		if i == 0 {
			_, same := errors.AsType[busyError](all.start(&job{lock: "0"}, untilStopped))
			if !same {
				t.Error("same is false: the same lock")
			}
		}
	}
	_, many := errors.AsType[busyError](all.start(&job{lock: "other"}, untilStopped))
	if !many {
		t.Error("many is false: too many")
	}
	running[0].stop("ann")
	<-running[0].ended
	if !running[0].State().Stopped() {
		t.Error("running[0].State.Stopped returned false")
	}
	if got := running[0].State().Report.Done; got != 2 {
		t.Errorf("running[0].State().Report.Done is %d, want 2", got)
	}
	if err := all.start(&job{lock: "0"}, untilStopped); err != nil {
		t.Fatalf("%v: the lock is free again", err)
	}
	all.close()
	for _, j := range all.latest() {
		if j.State().Running() {
			t.Error("j.State.Running returned true: close waits for all")
		}
	}
	if err := all.start(&job{lock: "new"}, untilStopped); !errors.Is(err, errClosed) {
		t.Fatalf("start: got %v, want errClosed", err)
	}
}

func TestOldChangesAreForgotten(t *testing.T) {
	all, _ := newTestJobs(t)
	kept := &job{lock: "running"}
	kit.OK(t, all.start(kept, untilStopped))
	var last *job
	for range keptJobs + 10 {
		last = &job{}
		kit.OK(t, all.start(last, func(context.Context, func(report)) (report, error) { return report{}, nil }))
		<-last.ended
	}
	if got := len(all.latest()); got > keptJobs {
		t.Errorf("len(all.latest) is %d, want at most %d", got, keptJobs)
	}
	if got := all.get(last.ID); got != last {
		t.Errorf("all.get(last.ID) is %p, want %p", got, last)
	}
	if got := all.get(kept.ID); got != kept {
		t.Errorf("all.get(kept.ID) is %p, want %p: a running change is not forgotten", got, kept)
	}
	if got := all.get("unknown"); got != nil {
		t.Errorf(`all.get("unknown") is %+v, want nil`, got)
	}
}

// A quote after a backslash does not end a string.
func TestJSONIsIndentedOutsideOfStrings(t *testing.T) {
	const want = "{\n  \"a\": \"x\\\",{y\",\n  \"b\": [\n    \"\\\\\",\n    1\n  ]\n}"
	if got, cut := render([]byte(`{"a":"x\",{y","b":["\\",1]}`), viewJSON); got != want || cut {
		t.Errorf("the text is\n%s\nwant\n%s", got, want)
	}
}

// A page says so if it shows only the beginning of a message.
func TestBeginningOfALargeMessageIsMarked(t *testing.T) {
	for n, want := range map[int]bool{shownBytes / 4: false, shownBytes/4 + 1: true} {
		if _, cut := render(bytes.Repeat([]byte{0xff}, n), viewHex); cut != want {
			t.Errorf("%d bytes are cut: %t", n, cut)
		}
	}
	for n, want := range map[int]bool{shownBytes: false, shownBytes + 1: true} {
		if _, cut := render(bytes.Repeat([]byte("x"), n), viewText); cut != want {
			t.Errorf("a text of %d bytes is cut: %t", n, cut)
		}
	}
	metadata := map[string]string{}
	for n := range shownPairs {
		metadata[fmt.Sprint(n)] = ""
	}
	if pairs, cut := shownMetadata(metadata); len(pairs) != shownPairs || cut {
		t.Errorf("%d pairs are shown, cut %t; want all %d", len(pairs), cut, shownPairs)
	}
	metadata["one more"] = ""
	if pairs, cut := shownMetadata(metadata); len(pairs) != shownPairs || !cut {
		t.Errorf("%d pairs are shown, cut %t; want %d of %d", len(pairs), cut, shownPairs, len(metadata))
	}
}

// A replay that somebody has stopped elsewhere has not failed.
func TestStoppedReplayIsNoProblem(t *testing.T) {
	for err, stopped := range map[error]bool{
		fmt.Errorf("quarantine: %w", operate.ErrReplayStopped): true, errors.New("the database is away"): false, nil: false,
	} {
		state := jobState{Started: time.Now(), Ended: time.Now(), Err: err}
		if state.Stopped() != stopped || (state.Problem() == "") != (stopped || err == nil) {
			t.Errorf("%v: stopped %t, problem %q", err, state.Stopped(), state.Problem())
		}
	}
}

// A server knows this panic: it ends the connection, and the browser gets no complete page.
func TestAbortedResponseIsNotCompleted(t *testing.T) {
	var logs kit.Logs
	c := &Console{config: Config{Logger: &logs}}
	defer func() {
		if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // the server compares it so
			t.Errorf("the panic is %v", p)
		}
		if lines := logs.Lines(); len(lines) > 0 {
			t.Errorf("logged: %q", lines)
		}
	}()
	c.protect(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	t.Error("it returns")
}

// A plan can have only the parts that its change has, and each number has a limit.
func TestPlanOfAChange(t *testing.T) {
	form := url.Values{"stop": {"1"}, "force": {"1"}, "rate": {"1000000"}, "canary": {"5"}, "window": {"6"}}
	for _, c := range []struct {
		act   act
		parts []string
		want  operate.Plan
	}{
		{act{Name: "neither"}, nil, operate.Plan{}},
		{act{Name: "rate", HasRate: true, Force: "yes"}, []string{"rate", "force"}, operate.Plan{Rate: 1_000_000, Force: true}},
		{
			act{Name: "plan", HasRate: true, HasPlan: true},
			[]string{"rate", "canary", "window", "stop"},
			operate.Plan{Rate: 1_000_000, Canary: 5, Window: 6, StopOnFailure: true},
		},
	} {
		has := url.Values{}
		for _, name := range c.parts {
			has[name] = form[name]
		}
		if p, err := newPlan(has, c.act); err != nil || !reflect.DeepEqual(p, c.want) {
			t.Errorf("%s: the plan is %+v, %v; want %+v", c.act.Name, p, err, c.want)
		}
		for name, value := range form {
			if slices.Contains(c.parts, name) {
				continue
			}
			want := fmt.Sprintf("%q is no value of %q", name, c.act.Name)
			if _, err := newPlan(url.Values{name: value}, c.act); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
			if _, err := newPlan(url.Values{name: {""}}, c.act); err != nil { // as from an empty field
				t.Error(err)
			}
		}
	}
	form = url.Values{}
	for _, text := range []string{"1000001", "-1", "x"} {
		form.Set("rate", text)
		if _, err := newPlan(form, act{HasRate: true}); err == nil || !strings.Contains(err.Error(), "not a number from 0 to 1,000,000") {
			t.Errorf("rate %s: %v", text, err)
		}
	}
}

// A browser would not send a longer name back in a URL.
func TestLongNamesAreNotLinked(t *testing.T) {
	name := strings.Repeat("k", longestLinked)
	if got, want := link("outbox", "key", name), "outbox?key="+name; got != want {
		t.Errorf("the link has %d bytes, want %d", len(got), len(want))
	}
	if got := link("outbox", "key", name+"k"); got != "" {
		t.Errorf("the link has %d bytes, want none", len(got))
	}
	if got, want := link("outbox", "topic", "0", "id", 0, "key", ""), "outbox?topic=0"; got != want {
		t.Errorf("the link is %q, want %q: 0 is a name, too", got, want)
	}
}
