package main

import (
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

// bitten returns the report of a run that passes.
func bitten() *report {
	return &report{Asked: 10, Bites: 1, Messages: 12, Rows: []*row{
		{Kind: "a", Injected: 2, Bitten: 2}, {Kind: "b", Injected: 2, Bitten: 1}, {Kind: "c", Unavailable: true},
	}}
}

func TestLastLineOfTheReportHasTheTotals(t *testing.T) {
	r := bitten()
	r.totals = totals{Lost: 1, Doubled: 2, Phantoms: 3, Inversions: 4}
	var out strings.Builder
	r.print(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if got, want := lines[len(lines)-1], "messages=12 kinds=2 bites=3 lost=1 doubled=2 phantoms=3 inversions=4"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestReportSaysWhatTookLong(t *testing.T) {
	r := bitten()
	r.Rows[0].Took, r.Rows[1].Took, r.Rows[1].Missed = 20*time.Second, 4*time.Minute, 3*time.Minute
	r.began("the faults")()
	r.Phases[0].Took = 5 * time.Minute
	var out strings.Builder
	r.print(&out)
	want := "the faults took 5m0s\n4 injections, those without an effect took 3m0s; the longest kinds: b 4m0s, a 20s\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("%q is not in %q", want, out.String())
	}
}

func TestReportSaysHowLongNothingMoved(t *testing.T) {
	r := bitten()
	var out strings.Builder
	r.print(&out)
	if strings.Contains(out.String(), "afterwards") {
		t.Errorf("%q has a table of what was not measured", out.String())
	}
	r.Rows[1].During, r.Rows[1].After = silence{3 * time.Second, 1500 * time.Millisecond}, silence{0, 20 * time.Second}
	r.print(&out)
	if want := "b                               3.0 s      1.5 s    0.0 s                 20.0 s\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%q is not in %q", want, out.String())
	}
}

// A member whose counts are set by the test publishes and handles messages.
func TestSilenceIsMeasured(t *testing.T) {
	counted := func(role string) (m *member, add func(name string)) {
		m = &member{life: life{Role: role}, before: make(map[string]int64), proc: &process{gone: make(chan struct{})}}
		return m, func(name string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.before[name]++
		}
	}
	f, publish := counted(forwarding)
	c, _ := counted(consuming)
	w := &world{members: []*member{f, c}}
	stop := w.listen()
	const each = 300 * time.Millisecond
	for range 4 {
		rest(t.Context(), each) // the silence that listen must measure
		publish("once.forwarder.published/confirmed")
	}
	if s := stop(); s.Published < each-beatEvery || s.Handled < 4*each || s.Published >= s.Handled {
		t.Errorf("%+v", s)
	}
}

func TestRunFailsForEachBrokenPromise(t *testing.T) {
	for name, change := range map[string]func(r *report){
		"lost":       func(r *report) { r.Lost++ },
		"doubled":    func(r *report) { r.Doubled++ },
		"phantom":    func(r *report) { r.Phantoms++ },
		"inversion":  func(r *report) { r.Inversions++ },
		"no bite":    func(r *report) { r.Rows[0].Bitten = 0 },
		"too few":    func(r *report) { r.Messages = 9 },
		"other":      func(r *report) { r.wrongf("a row is left") },
		"":           func(*report) {},
		"never came": func(r *report) { r.Rows = append(r.Rows, &row{Kind: "d"}) },
	} {
		r := bitten()
		change(r)
		r.judge()
		if r.passed() != (name == "") {
			t.Errorf("%q: passed is %v", name, r.passed())
		}
	}
}

func TestRowCoversUnfinishedEvents(t *testing.T) {
	r := row{spans: []span{{20_000, 20_100}}}
	for serial, want := range map[int64]bool{20_000 - underWay - 1: false, 20_000 - underWay: true, 20_100: true, 20_101: false} {
		if r.covers(serial) != want {
			t.Errorf("%d: %v", serial, !want)
		}
	}
}

func TestJournalHasTheLastEntryOfEachTransaction(t *testing.T) {
	dir := t.TempDir()
	for name, notes := range map[string][]struct {
		state byte
		tx    string
	}{
		"writer1-1": {{tried, "a"}, {tried, "b"}, {committed, "a"}, {rolledBack, "b"}},
		"writer1-2": {{tried, "c"}, {unknown, "c"}, {tried, "d"}}, // killed while its transaction d was open
	} {
		j, err := openJournal(filepath.Join(dir, name+".journal"))
		kit.OK(t, err)
		for _, n := range notes {
			kit.OK(t, j.note(n.state, n.tx, 3))
		}
	}
	got, err := readJournals(dir)
	kit.OK(t, err)
	want := map[string]entry{"a": {committed, 3}, "b": {rolledBack, 3}, "c": {unknown, 3}, "d": {unknown, 3}}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAJournalThatContradictsItselfIsAnError(t *testing.T) {
	for name, notes := range map[string]string{"tried twice": "TT", "no state": "X"} {
		dir := t.TempDir()
		j, err := openJournal(filepath.Join(dir, "w.journal"))
		kit.OK(t, err)
		for _, state := range []byte(notes) {
			kit.OK(t, j.note(state, "a", 1))
		}
		if _, err := readJournals(dir); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestRecorderFindsMessagesOutOfOrder(t *testing.T) {
	for _, c := range []struct {
		name       string
		numbers    []int
		inversions int
		copies     int64
	}{
		{"in order", []int{1, 2, 3}, 0, 0},
		{"copies", []int{1, 1, 2, 1, 2, 3}, 0, 3},
		{"one overtakes", []int{1, 3, 2, 4}, 1, 1},
		{"the first is late", []int{2, 1}, 1, 1},
		{"one never comes", []int{1, 3, 4}, 1, 0},
	} {
		r := &recorder{last: make(map[string]int64), missing: make(map[string]bool)}
		for _, n := range c.numbers {
			r.note("id", "key", strconv.Itoa(n))
			r.note("id", "", "") // without a key there is no order
		}
		inversions, seen, copies := r.found()
		if len(inversions) != c.inversions || copies != c.copies || seen != int64(2*len(c.numbers)) {
			t.Errorf("%s: %v, %d seen, %d copies", c.name, inversions, seen, copies)
		}
		if absent := r.absent(); len(absent) > 0 != (c.name == "one never comes") {
			t.Errorf("%s: %q never came", c.name, absent)
		}
	}
}
