package dispatch

import (
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

var (
	seeds     = flag.Int("schedules", 0, "number of generated schedules; 0 chooses a number")
	firstSeed = flag.Uint64("seed", 1, "seed of the first schedule; the others follow")
	printed   = flag.Bool("print", false, "print the events of each schedule")
)

// numberOfSchedules returns the number of the flag. By default it returns fewer schedules
// with the race detector. A schedule runs on one goroutine, so the detector cannot find
// anything, but makes schedules slow.
func numberOfSchedules() int {
	if *seeds > 0 {
		return *seeds
	}
	if kit.Race {
		return 1000
	}
	return kit.Sized(1500, 10_000)
}

// TestSchedules runs generated schedules of reads, outcomes, lost leases, late commits,
// failures, restarts and clock jumps against a model. It checks that
//
//   - messages of one key are published in order, one at a time,
//   - a confirmed message is not published again by the same process,
//   - a message is published only while its slot is leased and it is due,
//   - no attempt is counted for a message that the broker has not refused, for example
//     because the publisher lacks the right for its topic,
//   - a paused message is published only if a publish of it began before the pause,
//   - within five minutes after the last failure, by the clock of the model, every
//     message is confirmed or dead. In most schedules no sweep from the start of the
//     outbox is due before that, so the Scheduler must not need one.
//
// A failure names the seed. Repeat it with -seed=N -schedules=1 -print -v.
func TestSchedules(t *testing.T) {
	t.Parallel()
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // with little memory in use, the collector needs a third of the time
	var (
		next    atomic.Uint64
		workers sync.WaitGroup
		steps   atomic.Int64
		ahead   atomic.Int64
	)
	schedules := numberOfSchedules()
	next.Store(*firstSeed)
	last := *firstSeed + uint64(schedules)
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for seed := next.Add(1) - 1; seed < last && !t.Failed(); seed = next.Add(1) - 1 {
				w := newWorld(seed, plant{})
				if *printed {
					w.logf = t.Logf
				}
				if err := w.schedule(); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				steps.Add(int64(w.steps))
				ahead.Add(int64(w.foundAhead))
			}
		})
	}
	workers.Wait()
	t.Logf("%d schedules, %d steps, %d messages found by lookaheads", schedules, steps.Load(), ahead.Load())
	if schedules >= 1000 && ahead.Load() == 0 {
		t.Error("no lookahead has found a message")
	}
}

// schedule runs one generated schedule. It returns an error that names the broken rule,
// or nil.
func (w *world) schedule() error {
	for slot := range int64(slotCount) {
		w.owned[slot] = true
	}
	w.grant(w.leased())
	until := w.now.Add(time.Duration(1+w.rng.IntN(8)) * time.Second)
	longest := pick(w.rng, 5*time.Millisecond, 100*time.Millisecond, 2*time.Second)
	if w.profile.bulk { // rows that are committed late, behind a backlog
		longest = pick(w.rng, 300*time.Millisecond, 2*time.Second)
	}
	var next func()
	next = func() {
		if w.now.Before(until) {
			w.act(longest)
			w.later(2*time.Duration(pick(w.rng, 5, 50, 200))*time.Millisecond, next)
		}
	}
	next()
	w.run(time.Hour, func() bool { return !w.now.Before(until) })
	if w.rng.IntN(4) == 0 {
		w.s.Stop(w.now)
		if !w.run(time.Minute, func() bool { return w.closed }) {
			w.failf("it does not end after Stop")
		}
		w.restart()
	}
	w.heal()
	if w.deaf && !w.run(2*time.Minute, w.othersSettled) {
		w.failf("a topic that does not answer stops others: %s", w.left())
	}
	w.deaf = false
	if !w.run(5*time.Minute, w.settled) {
		w.failf("%s", w.left())
	}
	return w.broken
}

// act does one random action.
func (w *world) act(longest time.Duration) {
	switch n := w.rng.IntN(100); {
	case n < 55:
		w.write(longest)
	case n < 65:
		w.renew()
	case n < 72:
		w.lose(int64(w.rng.IntN(slotCount)))
	case n < 74:
		w.lose(w.leased()...)
	case n < 86:
		w.otherInstance()
	case n < 92:
		w.s.Hint(w.now)
	case n < 94:
		w.release(fmt.Sprint("key", w.rng.IntN(w.profile.keys)))
	case n < 96:
		if w.profile.pauses {
			w.pause(pick(w.rng, Pauses{}, Pauses{}, Pauses{Topics: []string{"topic1"}}, Pauses{Topics: []string{"topic0", "topic1"}},
				Pauses{Tenants: []string{"a"}}, Pauses{Topics: []string{"topic2"}, Tenants: []string{"b", "many"}}))
		}
	case n < 97:
		w.now = w.now.Add(pick(w.rng, time.Second, 20*time.Second, time.Hour))
	case n < 98:
		w.restart()
	}
}

// heal ends all failures. From then on, every message must finally be confirmed or
// become a dead letter.
func (w *world) heal() {
	w.healed = true
	w.pause(Pauses{})
	w.deaf = w.profile.silent && w.s.config.Window > 1 && w.s.config.BufferBytes > 10_000
	var beat func()
	beat = func() {
		w.renew()
		for i := range w.profile.keys {
			w.release(fmt.Sprint("key", i))
		}
		if w.settled() {
			return
		}
		xid := w.begin()
		w.commits++
		w.lastPosition++
		// Other messages that are confirmed show that a candidate itself is the cause
		// of a failure.
		w.table[w.lastPosition] = &stored{
			Message: Message{
				Position: w.lastPosition, ID: fmt.Sprint(w.lastPosition), Slot: w.lastPosition % slotCount,
				Topic: fmt.Sprint("topic", w.rng.IntN(topicCount)),
			},
			commit: w.commits, beat: true,
		}
		w.end(xid)
		w.later(400*time.Millisecond, beat)
	}
	beat()
}

// settled reports whether the outcomes of all messages that were written before heal
// are recorded.
func (w *world) settled() bool {
	if len(w.open) > 0 && len(w.table) == 0 {
		return false
	}
	for _, row := range w.table {
		if !row.beat {
			return false
		}
	}
	return w.s.Orphans() == 0
}

// othersSettled reports whether all remaining messages belong to the topic that does
// not answer, or have a key.
func (w *world) othersSettled() bool {
	for _, row := range w.table {
		if !row.beat && row.Key == "" && row.Topic != deafTopic {
			return false
		}
	}
	return true
}

// left describes the messages that were not published.
func (w *world) left() string {
	var positions []int64
	for position, row := range w.table {
		if !row.beat {
			positions = append(positions, position)
		}
	}
	slices.Sort(positions)
	return fmt.Sprintf("not published after everything works again: %v; blocked keys %v", positions, w.blocked)
}

// plant changes commands and events between the Scheduler and the world. It simulates a
// mistake in the Scheduler, or in the code that runs its commands.
type plant struct {
	commands   func(w *world, c *Commands)
	rows       func(w *world, r *Read, rows *[]*Message, at *Reach)
	outcome    func(w *world, p *Publish, outcome *Outcome) (reported bool)
	settlement func(w *world, batch *Settlement)
	settled    func(w *world, result *Settled)
	lose       func(w *world, slots *[]int64)
	policy     func(topic string) Policy
	unsettled  bool // slots are leased again before the outcomes of their messages are recorded
}

// plants contains at least one mistake for each kind of command and event.
var plants = map[string]plant{
	"a read begins too high": {commands: func(_ *world, c *Commands) {
		if c.Read != nil && c.Read.From > 0 {
			c.Read.From++
		}
	}},
	"a read returns messages in memory": {commands: func(_ *world, c *Commands) {
		if c.Read != nil {
			c.Read.Known = nil
		}
	}},
	"a sweep reads excluded keys": {commands: func(w *world, c *Commands) {
		for _, q := range w.s.buffer.queues {
			q.excluded = false
		}
		if c.Read != nil && !c.Read.Refill {
			c.Read.Keys = nil
		}
	}},
	"a refill is not run": {commands: func(_ *world, c *Commands) {
		if c.Read != nil && c.Read.Refill {
			c.Read.Keys = nil
		}
	}},
	"a read returns rows of other slots": {commands: func(_ *world, c *Commands) {
		if c.Read != nil {
			c.Read.Slots = []int64{0, 1, 2, 3}
		}
	}},
	"a read loses a row": {rows: func(_ *world, _ *Read, rows *[]*Message, _ *Reach) {
		if len(*rows) > 1 {
			*rows = (*rows)[1:]
		}
	}},
	"a read claims to have reached the end": {rows: func(_ *world, _ *Read, _ *[]*Message, at *Reach) {
		at.Covered = Everything
	}},
	"a lookahead forgets the keys that it skips": {rows: func(_ *world, r *Read, _ *[]*Message, at *Reach) {
		if r.Lookahead {
			at.Skipped = nil
		}
	}},
	"paused rows of a key are left out": {rows: func(_ *world, _ *Read, rows *[]*Message, _ *Reach) {
		*rows = slices.DeleteFunc(*rows, func(m *Message) bool { return m.Paused })
	}},
	"a change of the pauses is not seen": {rows: func(_ *world, r *Read, _ *[]*Message, at *Reach) { at.Pauses = r.Pauses }},
	"the end of a pause is forgotten": {rows: func(w *world, r *Read, _ *[]*Message, at *Reach) {
		if at.Pauses.None() {
			w.s.paused.pauses = Pauses{}
		}
	}},
	"held keys are forgotten":           {commands: func(w *world, _ *Commands) { w.s.paused.heldKeys = nil }},
	"a topic has the policy of another": {policy: func(string) Policy { return policyOf("topic2") }},
	"open transactions are ignored": {rows: func(_ *world, _ *Read, _ *[]*Message, at *Reach) {
		at.Horizon = at.Ceiling
	}},
	"a position is settled without a transaction": {commands: func(w *world, _ *Commands) {
		w.s.Wrote(w.s.Sight())
	}},
	"a refill reads above late commits": {commands: func(w *world, _ *Commands) {
		w.s.buffer.low = Everything
	}},
	"a message is published twice": {commands: func(_ *world, c *Commands) {
		if len(c.Publish) > 0 {
			c.Publish = append(slices.Clone(c.Publish), c.Publish[0])
		}
	}},
	"a publish is not run": {commands: func(w *world, c *Commands) {
		if len(c.Publish) > 0 && w.rng.IntN(20) == 0 {
			c.Publish = c.Publish[1:]
		}
	}},
	"an outcome is lost": {outcome: func(w *world, _ *Publish, _ *Outcome) bool { return w.rng.IntN(20) > 0 }},
	"a refusal is taken for a confirm": {outcome: func(_ *world, _ *Publish, outcome *Outcome) bool {
		if *outcome == Refused {
			*outcome = Confirmed
		}
		return true
	}},
	"an unknown outcome is taken for a confirm": {outcome: func(_ *world, _ *Publish, outcome *Outcome) bool {
		if *outcome == Unknown || *outcome == Unexplained {
			*outcome = Confirmed
		}
		return true
	}},
	"a missing right is taken for a refusal": {outcome: func(_ *world, _ *Publish, outcome *Outcome) bool {
		if *outcome == TopicUnavailable {
			*outcome = Refused
		}
		return true
	}},
	"a message that was not sent is taken for confirmed": {outcome: func(_ *world, _ *Publish, outcome *Outcome) bool {
		if *outcome == NotSent {
			*outcome = Confirmed
		}
		return true
	}},
	"candidates are forgotten": {outcome: func(w *world, _ *Publish, _ *Outcome) bool {
		w.s.attribution.candidates = nil
		return true
	}},
	"a failed settlement is taken for recorded": {settled: func(_ *world, result *Settled) {
		result.Confirmed, result.Charges, result.Err = true, true, nil
	}},
	"a settlement leaves a charge out": {settlement: func(_ *world, batch *Settlement) { batch.Charges = nil }},
	"a settlement deletes a charged message": {settlement: func(_ *world, batch *Settlement) {
		for _, c := range batch.Charges {
			batch.Confirmed = append(batch.Confirmed, c.Message)
		}
	}},
	"a blocked key forgets a late commit": {settlement: func(_ *world, batch *Settlement) {
		for i := range batch.Charges {
			batch.Charges[i].SuccessorsAfter = batch.Charges[i].Message.Position
		}
	}},
	"a lost slot is not reported":      {lose: func(_ *world, slots *[]int64) { *slots = nil }},
	"a slot is leased again too early": {unsettled: true},
	"the time to wake is forgotten": {commands: func(w *world, c *Commands) {
		c.WakeAt = w.now.Add(time.Hour)
		if c.Read != nil {
			w.s.reading.next = w.now.Add(time.Hour)
		}
	}},
}

// TestPlantedFaultsAreFound checks that the rules of TestSchedules find each planted
// mistake.
func TestPlantedFaultsAreFound(t *testing.T) {
	t.Parallel()
	const schedules = 3000
	for name, p := range plants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(schedules) {
				if err := newWorld(seed, p).schedule(); err != nil {
					t.Logf("schedule %d: %v", seed, err)
					return
				}
			}
			t.Errorf("not found in %d schedules", schedules)
		})
	}
}
