package parked

// States of a row.
const (
	Waiting     = "waiting"
	Held        = "held" // waits behind the head of its ordering key
	Quarantined = "quarantined"
	Resolved    = "resolved"
	Discarded   = "discarded"
)

// Final is an SQL list of the final states. A row never leaves a final state.
const Final = `('resolved', 'discarded')`

// AtRest is the condition of the indexes parked_aggregate and parked_causation. It is
// true for rows that do not wait for a call of their handler.
const AtRest = `state IN ('quarantined', 'resolved', 'discarded')`
