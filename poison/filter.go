package poison

import "time"

// Filter says which entries are meant: those that match every field that is not
// empty.
type Filter struct {
	// All says that everything is meant. To act by a Filter without another
	// condition, which may be a mistake, it must be set.
	All bool

	// IDs are those of the entries, not of their messages. A list without
	// elements matches nothing; nil is no condition.
	IDs []int64

	// Consumer is the name of the consumer that failed, Topic what it had
	// subscribed to.
	Consumer string
	Topic    string

	// MessageID is the message's own id, Tenant whose message it is.
	MessageID string
	Tenant    string

	// Reason, ErrorType and Fingerprint are those of the last failure. Reason is
	// one of the Reason constants.
	Reason      string
	ErrorType   string
	Fingerprint string

	// FailedAfter and FailedBefore are about the last failure: from the one on
	// and before the other. Whole milliseconds, of the database's clock.
	FailedAfter  time.Time
	FailedBefore time.Time

	// AfterID is the ID of the last entry of the page before: entries come in
	// order of their ID. AfterGroup is the Fingerprint of the last group of the
	// page before: groups come in order of their Fingerprint.
	AfterID    int64
	AfterGroup string

	// Limit is the most entries, or groups, that are meant. Defaults to 100 where
	// they are listed, and to all where something is done with them.
	Limit int
}

// Act says who does something and why: it is kept with what was done, in the
// table of audits.
type Act struct {
	// Actor is required.
	Actor string

	// Why is required where a message may be lost: to discard, and to edit.
	Why string
}
