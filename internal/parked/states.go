package parked

// States of a row.
const (
	Waiting     = "waiting"
	Held        = "held" // waits behind the head of its ordering key
	Quarantined = "quarantined"
	Resolved    = "resolved"
	Discarded   = "discarded"
)

// Final lists, for SQL, the states that a row does not leave.
const Final = `('resolved', 'discarded')`

// AtRest is the condition of the indexes parked_aggregate and parked_causation: no
// process will claim such a row.
const AtRest = `state IN ('quarantined', 'resolved', 'discarded')`
