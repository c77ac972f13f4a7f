package operate

import "time"

// Filter selects the messages that match all fields that are not empty. Each package supports the
// fields that its messages have. The others must be empty, because an ignored field would select
// more messages than meant.
//
//	outbox      IDs MessageID Topic OrderingKey Tenant AggregateType AggregateID EventType
//	            State CreatedAfter CreatedBefore
//	dead        IDs MessageID Topic OrderingKey Tenant AggregateType AggregateID EventType
//	            Reason Fingerprint FailedAfter FailedBefore
//	sent log    IDs MessageID Topic OrderingKey Tenant AggregateType AggregateID EventType
//	            SentAfter SentBefore
//	parked      IDs Consumer MessageID Topic OrderingKey Tenant State CreatedAfter CreatedBefore
//	quarantine  IDs Consumer MessageID Topic Tenant AggregateType AggregateID EventType
//	            Reason ErrorType Fingerprint FailedAfter FailedBefore
type Filter struct {
	// All selects all messages. A call that changes messages refuses a Filter without any
	// condition unless All is true, because such a Filter may be a mistake.
	All bool `json:"all,omitempty"`

	// IDs are the IDs of rows (in the outbox positions), not of their messages. If IDs is nil, rows
	// with any ID match. A list without elements matches no row.
	IDs []int64 `json:"ids,omitzero"`

	// Topic is that of the message, or of the subscription of Consumer.
	Consumer string `json:"consumer,omitempty"`
	Topic    string `json:"topic,omitempty"`

	// MessageID and OrderingKey must be equal to the values of the message.
	MessageID   string `json:"message_id,omitempty"`
	OrderingKey string `json:"ordering_key,omitempty"`

	// Tenant, AggregateType, AggregateID and EventType are values in the metadata, see
	// outbox.SetTenant, SetAggregate and SetEventType. Except in the outbox, only their first 255
	// characters are compared.
	Tenant        string `json:"tenant,omitempty"`
	AggregateType string `json:"aggregate_type,omitempty"`
	AggregateID   string `json:"aggregate_id,omitempty"`
	EventType     string `json:"event_type,omitempty"`

	// State is one of the states of the package, for example outbox.Blocked or parked.Held.
	State string `json:"state,omitempty"`

	// Reason, ErrorType and Fingerprint, that of a [Group], describe the last failure. Reason is
	// one of the package's reasons.
	Reason      string `json:"reason,omitempty"`
	ErrorType   string `json:"error_type,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`

	// CreatedAfter (inclusive) and CreatedBefore (exclusive) limit the time at which a message was
	// stored, FailedAfter and FailedBefore the time of the last failure, or at which it became a
	// dead letter, and SentAfter and SentBefore the time at which it was sent, by the database's
	// clock, in whole milliseconds.
	CreatedAfter  time.Time `json:"created_after,omitzero"`
	CreatedBefore time.Time `json:"created_before,omitzero"`
	FailedAfter   time.Time `json:"failed_after,omitzero"`
	FailedBefore  time.Time `json:"failed_before,omitzero"`
	SentAfter     time.Time `json:"sent_after,omitzero"`
	SentBefore    time.Time `json:"sent_before,omitzero"`

	// AfterID selects rows with a higher ID, for the next page Next of the previous one. AfterGroup
	// is the Fingerprint of the last group of the previous page, for methods that return groups.
	AfterID    int64  `json:"after_id,omitempty"`
	AfterGroup string `json:"-"`

	// UntilID is the highest ID that matches, for example the result of SentLog.SettledID.
	// Defaults to 0, which means no limit.
	UntilID int64 `json:"until_id,omitempty"`

	// Limit is the maximum number of messages to list, count or change, or of groups to list. Lists
	// default to 100, other calls to no limit. Counts and backlogs of packages outbox and parked
	// ignore it.
	Limit int `json:"limit,omitempty"`
}

// Page is one page of a list, in the order of IDs. It can have fewer rows than Filter.Limit, or
// none, even if later pages have rows.
type Page[Row any] struct {
	Rows []Row

	// Next is the value of Filter.AfterID for the next page, or 0 if this is the last page.
	Next int64
}

// Count is the number of messages that one call has counted, perhaps only of a part.
type Count struct {
	N int

	// Next is the value of Filter.AfterID to count the rest, or 0 if no other message matches.
	Next int64
}
