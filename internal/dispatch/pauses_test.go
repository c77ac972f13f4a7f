package dispatch

import (
	"testing"
	"time"
)

// pause simulates an operator who replaces the paused topics and tenants with p.
func (w *world) pause(p Pauses) {
	w.tracef("pauses %+v", p)
	w.pauses, w.heeds = p, false
	w.changes++
}

// A message is paused by its topic or by its tenant. The schedules cannot find a mistake
// here, because their model of the database asks Include, too.
func TestPausesIncludeTopicsAndTenants(t *testing.T) {
	t.Parallel()
	pauses := Pauses{Topics: []string{"mails", "orders"}, Tenants: []string{"a", "b"}}
	for _, c := range []struct {
		pauses        Pauses
		topic, tenant string
		want          bool
	}{
		{pauses, "mails", "", true},
		{pauses, "orders", "c", true},
		{pauses, "other", "b", true},
		{pauses, "mails", "a", true},
		{pauses, "other", "c", false},
		{pauses, "a", "mails", false},
		{pauses, "other", "", false},
		{Pauses{Tenants: []string{"a"}}, "mails", "a", true},
		{Pauses{}, "mails", "a", false},
	} {
		if got := c.pauses.Include(c.topic, c.tenant); got != c.want {
			t.Errorf("%+v includes topic %q and tenant %q: %t, want %t", c.pauses, c.topic, c.tenant, got, c.want)
		}
	}
	if !(Pauses{}).None() || (Pauses{Topics: []string{"t"}}).None() || (Pauses{Tenants: []string{"a"}}).None() {
		t.Error("None is wrong")
	}
}

// When the pauses change, a sweep from the start begins immediately, even if the next
// sweep was due later.
func TestChangedPausesAreFollowedByASweep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		old, new Pauses
		changed  bool
	}{
		{Pauses{}, Pauses{}, false},
		{Pauses{}, Pauses{Topics: []string{"t"}}, true},
		{Pauses{Topics: []string{"t"}}, Pauses{Topics: []string{"t"}}, false},
		{Pauses{Topics: []string{"t"}}, Pauses{Tenants: []string{"t"}}, true},
		{Pauses{Tenants: []string{"a", "b"}}, Pauses{Tenants: []string{"a", "b"}}, false},
		{Pauses{Tenants: []string{"a", "b"}}, Pauses{}, true},
	} {
		s := fixed()
		s.paused.pauses = c.old
		s.reading.next, s.reading.rescan = start.Add(time.Hour), start.Add(time.Hour)
		if got := s.setPauses(c.new); got != c.changed || !s.paused.pauses.equal(c.new) {
			t.Errorf("from %+v to %+v: changed is %t, and the pauses are %+v", c.old, c.new, got, s.paused.pauses)
		}
		read := s.planRead(start)
		if (read != nil) != c.changed || read != nil && !read.Tidy {
			t.Errorf("from %+v to %+v: the next read is %+v", c.old, c.new, read)
		}
	}
}

// A message waits for an earlier paused message of its key. If the first paused row was
// committed late, later reads lower the position.
func TestMessagesWaitForAnEarlierPausedMessageOfTheirKey(t *testing.T) {
	t.Parallel()
	var p paused
	if p.held("k") || p.holds(&Message{Position: 50, Key: "k"}) {
		t.Fatal("a message waits, but nothing is paused")
	}
	for _, position := range []int64{30, 20, 40} {
		p.hold("k", position)
	}
	p.hold("", 1)
	if !p.held("k") || p.held("l") || p.held("") {
		t.Error("the wrong keys are held")
	}
	for name, c := range map[string]struct {
		m    Message
		want bool
	}{
		"later":           {Message{Position: 21, Key: "k"}, true},
		"the paused one":  {Message{Position: 20, Key: "k"}, false},
		"earlier":         {Message{Position: 19, Key: "k"}, false},
		"another key":     {Message{Position: 50, Key: "l"}, false},
		"no key":          {Message{Position: 50}, false},
		"due":             {Message{Position: 50, Key: "k", Due: true}, false},
		"blocks its key":  {Message{Position: 50, Key: "k", BlocksKey: true}, false},
		"later and known": {Message{Position: 41, Key: "k", Attempts: 1}, true},
	} {
		if got := p.holds(&c.m); got != c.want {
			t.Errorf("%s: holds is %t, want %t", name, got, c.want)
		}
	}
}
