package operate

import "time"

// Group describes messages that failed for the same cause. Package deadletter
// compares the reason and the error text. Package poison compares the consumer, the
// reason, the error type and the error text without its ids, numbers and quoted
// values.
type Group struct {
	// Fingerprint identifies the group. To select the messages of the group, set this value
	// in a Filter.
	Fingerprint string

	// Count is the number of messages. If More is true, the group may have more messages
	// than Count, because the method Groups of both packages stops counting at a limit.
	// DryRun counts all messages.
	Count int
	More  bool

	// Consumers are the consumers that failed; dead letters have no consumer. Topics are
	// the topics of the messages.
	Consumers, Topics []string

	// Reason and ErrorType are the same for all messages of the group; dead letters have
	// no ErrorType. Error is the error text of the latest message.
	Reason, ErrorType, Error string

	// FirstFailedAt is the time at which a message of the group failed for the first time,
	// and LastFailedAt is the time of the last failure. For a dead letter, both are the time
	// at which the forwarder gave up on it.
	FirstFailedAt, LastFailedAt time.Time

	// Skipped contains the IDs of the dead letters that a replay skips because they need
	// Plan.Force, in ascending order. Only DryRun of package deadletter sets this field.
	Skipped []int64
}
