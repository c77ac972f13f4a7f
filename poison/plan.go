package poison

import (
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/operate"
)

type (
	// Act contains the name of the person who changes something, and the reason. Actor is
	// always required. Why is required to discard and to edit, because a message may be
	// lost.
	Act = operate.Act

	// Plan says how to replay many entries. Its fields are Canary, Rate, Window,
	// StopOnFailure, Force and Progress. With the zero value, all entries are replayed as
	// fast as their consumer handles them.
	Plan = operate.Plan

	// Report is the part of a [Replay] that is passed to Plan.Progress: the ID, the State
	// and the counts.
	Report = operate.Report

	// Group describes the entries that failed for the same cause. These entries have the
	// same consumer, reason, error type and error text. Ids, numbers and quoted values in
	// the text are ignored.
	Group = operate.Group

	// GroupPage is a page of groups.
	GroupPage = operate.GroupPage

	// Count is the number of entries in a part of the quarantine.
	Count = operate.Count
)

func withDefaults(p Plan) Plan {
	if p.Window == 0 {
		p.Window = 1000
		if p.StopOnFailure {
			p.Window = 100
		}
	}
	return p
}

// replayStates returns the states of the entries that a replay includes. A replay
// includes resolved entries only if Plan.Force is set and Filter.IDs lists the entries.
func replayStates(p Plan, f Filter) []string {
	if p.Force && f.IDs != nil {
		return []string{parked.Quarantined, parked.Resolved}
	}
	return []string{parked.Quarantined}
}
