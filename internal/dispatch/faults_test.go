package dispatch

import (
	"slices"
	"testing"
	"time"
)

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
