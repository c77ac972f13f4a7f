package sequence

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// copyOf is a message of a schedule. Several messages may have the same version.
type copyOf struct {
	version  int64
	fails    int // number of attempts that fail; if it is above tries, the message fails permanently
	state    string
	replayed bool
}

const tries = 3

// schedule simulates one aggregate of one consumer. Its messages are decided in a random
// order, but one after the other, because of the row lock.
type schedule struct {
	*testing.T
	*rand.Rand

	config  Config
	filled  bool // OnGap returns Apply
	copies  []*copyOf
	last    last
	applied []int64
	said    []string
}

func (s *schedule) done(c *copyOf) bool { return c.state == "applied" || c.state == "ignored" }

func (s *schedule) say(c *copyOf, what string) {
	s.said = append(s.said, fmt.Sprintf("%d %s", c.version, what))
}

// deliver handles a message once, in the same way as Resequencer.decide.
// over says whether the message's window has ended.
func (s *schedule) deliver(c *copyOf, over bool) {
	filled := false
	switch s.config.place(s.last, c.version) {
	case stale:
		c.state = "ignored"
		s.say(c, "ignored")
		if !slices.Contains(s.applied, c.version) && !s.filled {
			s.Errorf("version %d is ignored, and was never applied: %v", c.version, s.said)
		}
		return
	case early:
		lower := slices.ContainsFunc(s.copies, func(o *copyOf) bool { return o.state == "held" && o.version < c.version })
		if !over || lower {
			c.state = "held"
			s.say(c, "held")
			return
		}
		filled = s.filled
		if s.config.AfterWindow == Quarantine && !s.filled && !c.replayed {
			c.state = "quarantined"
			s.say(c, "quarantined, early")
			return
		}
	case late:
		if !c.replayed {
			c.state = "quarantined"
			s.say(c, "quarantined, late")
			return
		}
	}
	if c.fails > 0 {
		c.fails--
		c.state = "retried"
		if s.say(c, "failed"); c.fails >= tries {
			c.state = "quarantined"
		}
		return
	}
	s.last = s.config.with(s.last, c.version, filled)
	s.applied = append(s.applied, c.version)
	c.state = "applied"
	s.say(c, "applied")
}

// waiting returns the messages that are neither handled nor in quarantine.
func (s *schedule) waiting() []*copyOf {
	return slices.DeleteFunc(slices.Clone(s.copies), func(c *copyOf) bool { return s.done(c) || c.state == "quarantined" })
}

// settle delivers messages until no message waits. If windows is true,
// the windows of messages may end before the missing versions are delivered.
func (s *schedule) settle(windows bool) {
	for step := 0; ; step++ {
		waiting := s.waiting()
		if len(waiting) == 0 {
			return
		}
		// In the end every window has ended, so stuck messages are delivered as well.
		stuck := !slices.ContainsFunc(waiting, func(c *copyOf) bool { return c.state != "held" }) && step > 20*len(s.copies)
		s.deliver(waiting[s.IntN(len(waiting))], stuck || windows && s.IntN(4) == 0)
		if step > 10000 {
			s.Fatalf("it does not end: %v", s.said)
		}
	}
}

// replay replays all messages in quarantine, after the cause of their failures was
// repaired.
func (s *schedule) replay() {
	for _, c := range s.copies {
		if c.state == "quarantined" {
			c.state, c.replayed, c.fails = "waiting", true, 0
			s.say(c, "replayed")
		}
	}
}

func newSchedule(t *testing.T, seed uint64, mostFails int) *schedule {
	s := &schedule{T: t, Rand: rand.New(rand.NewPCG(79, seed)), config: Config{Policy: HoldForGap}}
	s.config.FromZero = s.IntN(2) == 1
	for v := range 1 + s.IntN(6) {
		copies := 1
		if s.IntN(5) == 0 {
			copies = 2 // two producers that use different ids
		}
		for range copies {
			s.copies = append(s.copies, &copyOf{version: s.config.first() + int64(v), fails: max(0, s.IntN(2*mostFails+1)-mostFails)})
		}
	}
	return s
}

const schedules = 20_000

// Trap 79. Concurrency and retries may change the order of versions in any way. As long
// as no window ends, all versions are applied once and in order.
func TestSchedulesWithinTheWindow(t *testing.T) {
	t.Parallel()
	for seed := range uint64(schedules) {
		s := newSchedule(t, seed, tries)
		s.settle(false)
		var want []int64
		for _, c := range s.copies {
			want = append(want, c.version)
		}
		slices.Sort(want)
		left := slices.ContainsFunc(s.copies, func(c *copyOf) bool { return !s.done(c) })
		if want = slices.Compact(want); left || !slices.Equal(s.applied, want) {
			t.Fatalf("seed %d: applied %v, want %v: %v", seed, s.applied, want, s.said)
		}
	}
}

// Trap 79. Windows may end too soon, and versions may fail permanently or never arrive.
// Even then, a version that was not applied is not ignored: it goes to quarantine, and
// takes effect when it is replayed.
func TestSchedulesPastTheWindow(t *testing.T) {
	t.Parallel()
	for seed := range uint64(schedules) {
		s := newSchedule(t, seed, tries+2)
		s.config.AfterWindow = AfterWindow(s.IntN(2))
		missing := int64(-1)
		if s.IntN(2) == 0 {
			missing = s.copies[s.IntN(len(s.copies))].version
			s.copies = slices.DeleteFunc(s.copies, func(c *copyOf) bool { return c.version == missing })
		}
		s.settle(true)
		for round := 0; slices.ContainsFunc(s.copies, func(c *copyOf) bool { return !s.done(c) }); round++ {
			if round > 10 {
				t.Fatalf("seed %d: replays do not handle all messages: %v", seed, s.said)
			}
			s.replay()
			s.settle(true)
		}
		for _, c := range s.copies {
			if !slices.Contains(s.applied, c.version) {
				t.Fatalf("seed %d: version %d had no effect: %v", seed, c.version, s.said)
			}
		}
	}
}

// Trap 79. Missing versions count as applied only if OnGap returned Apply.
func TestSchedulesWithOnGap(t *testing.T) {
	t.Parallel()
	for seed := range uint64(schedules) {
		s := newSchedule(t, seed, tries-1)
		s.filled = true
		s.settle(true)
		for _, c := range s.copies {
			if !s.done(c) {
				t.Fatalf("seed %d: version %d is %s: %v", seed, c.version, c.state, s.said)
			}
		}
		if !slices.IsSorted(s.applied) || len(slices.Compact(slices.Clone(s.applied))) != len(s.applied) {
			t.Fatalf("seed %d: applied %v: %v", seed, s.applied, s.said)
		}
	}
}
