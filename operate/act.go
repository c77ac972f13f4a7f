package operate

import (
	"errors"
	"time"
)

// Act says who changes something, and why. Each change writes both to the audit log.
type Act struct {
	// Actor is the name of the person. It is required.
	Actor string

	// Why is the reason. Required if a message may be lost, such as to discard or to edit it.
	Why string
}

// Errors of packages outbox, dead, parked and quarantine. The text of an error says more.
var (
	// ErrNotFound means that no message has the ID. It may have been sent or handled.
	ErrNotFound = errors.New("not found")

	// ErrNeedsForce means that only a call with Plan.Force can change the message.
	ErrNeedsForce = errors.New("needs force")

	// ErrClaimed means that a handler is handling the message or a copy of it, or that another
	// transaction is changing it.
	ErrClaimed = errors.New("a handler is handling the message or a copy of it: try again when that has ended")
)

// Validate returns an error if Actor is empty.
func (a Act) Validate() error {
	if a.Actor == "" {
		return errors.New("Actor is empty: name who does this")
	}
	return nil
}

// ValidateLoss also returns an error if Why is empty, for acts that lose messages.
func (a Act) ValidateLoss() error {
	err := a.Validate()
	if a.Why == "" {
		err = errors.Join(err, errors.New("Why is empty: say why the messages may be lost"))
	}
	return err
}

// GroupPage is a page of failure groups.
type GroupPage struct {
	Groups []Group

	// Partial is true if only the latest messages were read. Groups with only older ones are then
	// missing, even from an empty page, and counts may be too low, so Group.More is true in each.
	// DryRun counts all messages.
	Partial bool
}

// Group describes messages that failed for the same cause: with the same reason and error text,
// without the ids, numbers, times, addresses and quoted values in it, but with its codes and names
// of exchanges, topics, tables, columns, constraints and fields. Package quarantine also compares
// the consumer and the error type.
type Group struct {
	// Fingerprint identifies the group, also in a Filter for its messages.
	Fingerprint string

	// Count is the number of messages. More says that there may be more, because Groups of both
	// packages stops counting at a limit. DryRun counts all.
	Count int
	More  bool

	// Consumers are the consumers that failed, none for dead letters, Topics those of the messages.
	Consumers, Topics []string

	// Reason and ErrorType are those of all messages; dead letters have no ErrorType. Error is the
	// text of the latest message.
	Reason, ErrorType, Error string

	// FirstFailedAt and LastFailedAt are the times of the first and the last failure, for a dead
	// letter the time at which the forwarder gave up on it.
	FirstFailedAt, LastFailedAt time.Time

	// Skipped contains the IDs of the dead letters that a replay skips because they need
	// Plan.Force, in ascending order. Only DryRun of package dead sets this field.
	Skipped []int64
}
