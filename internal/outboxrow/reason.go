package outboxrow

// Values of the column reason of {outbox_dead}. Packages forwarder, mover and pending
// write them, and package deadletter shows them.
const (
	DeadExhausted    = "exhausted"
	DeadUnacceptable = "unacceptable"
	DeadMalformed    = "malformed"
	DeadInvalid      = "invalid"
	DeadCancelled    = "cancelled"
)

// Values of the column reason of {blocked_keys}.
const (
	BlockedRefused  = "refused"  // the head was refused and is tried again
	BlockedUnknown  = "unknown"  // it is not known whether the head was sent
	BlockedDead     = "dead"     // the head is a dead letter
	BlockedReplayed = "replayed" // the head was a dead letter and is in the outbox again
	BlockedReleased = "released" // the head is the first message that waited behind a dead letter
)
