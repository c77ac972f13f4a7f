package poison

import (
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/operate"
)

type (
	// Act names the person who changes something, and the reason: Actor is always
	// required, Why where a message may be lost, to discard and to edit.
	Act = operate.Act

	// Plan says how to replay many entries: Canary, Rate, Window, StopOnFailure,
	// Force and Progress. With the zero value all entries are replayed as fast as
	// their consumer handles them.
	Plan = operate.Plan

	// Report is the part of a [Replay] that Plan.Progress is called with: the ID,
	// the State and the counts.
	Report = operate.Report

	// Group describes the entries that failed for the same cause: they have the
	// same consumer, reason, error type and error text. Ids, numbers and quoted
	// values in the text are not compared.
	Group = operate.Group
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

// replayStates returns the states of the entries that a replay by p and f
// includes. Resolved entries must be named.
func replayStates(p Plan, f Filter) []string {
	if p.Force && f.IDs != nil {
		return []string{parked.Quarantined, parked.Resolved}
	}
	return []string{parked.Quarantined}
}
