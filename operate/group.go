package operate

import "time"

// Group describes messages that failed for the same cause. Package deadletter
// compares the reason and the error text. Package poison compares the consumer, the
// reason, the error type and the error text without its ids, numbers and quoted
// values.
type Group struct {
	// Fingerprint identifies the group. A Filter with it selects its messages.
	Fingerprint string

	// Count is the number of messages. With More there are more of them: Groups of
	// both packages count a bounded number of messages. DryRun counts all.
	Count int
	More  bool

	// Consumers are the consumers that failed; dead letters have no consumer.
	// Topics are the topics of the messages.
	Consumers, Topics []string

	// Reason and ErrorType are those of all messages; dead letters have no
	// ErrorType. Error is that of the latest message.
	Reason, ErrorType, Error string

	// FirstFailedAt is the time of the first failure of any message of the group,
	// LastFailedAt the time of the last one. A dead letter has one time: that at
	// which the forwarder gave up on it.
	FirstFailedAt, LastFailedAt time.Time

	// Skipped are the IDs of the dead letters that a replay skips because they
	// need Plan.Force, in ascending order. Only DryRun of package deadletter sets
	// it.
	Skipped []int64
}
