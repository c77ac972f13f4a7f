// Package meta defines the metadata keys that several packages use. The public
// packages export them again.
//
// To read the code, start with keys.go and broker.go, then foreign.go (which keys
// travel between services), stamps.go and steering.go.
package meta

// Keys that a producer may set.
const (
	// Topic is the topic of a message that a handler produced, if it is not the
	// handler's publish topic. It is removed when the message is stored.
	Topic = "once_topic"

	// OrderingKey is the ordering key: messages with the same key keep their order.
	OrderingKey = "once_ordering_key"

	// DueAt is the earliest time of sending, in RFC 3339 with nanoseconds.
	DueAt = "once_due_at"

	// TenantID is the tenant of the message, for tenant fairness.
	TenantID = "once_tenant_id"

	// AggregateType and AggregateID name the aggregate of an event.
	// AggregateVersion is its version after the event.
	AggregateType    = "once_aggregate_type"
	AggregateID      = "once_aggregate_id"
	AggregateVersion = "once_aggregate_version"

	// EventType is the type of the event.
	EventType = "once_event_type"

	// CausationID is the id of the message whose handler produced this message.
	CausationID = "once_causation_id"

	// EditedFrom is the id of the original of a message that an operator has edited.
	EditedFrom = "once_edited_from"
)

// Keys of the times of a message. The forwarder sets them when it sends the message,
// in place of those that a handler has copied. Any sender can write them, so only
// metrics and the timestamp of an AMQP message may depend on them.
const (
	// CreatedAt is when the message was stored in the outbox: the time of the
	// database at the beginning of the transaction.
	CreatedAt = "once_created_at"

	// PublishedAt is when the message was last given to the publisher, by the clock
	// of the forwarder.
	PublishedAt = "once_published_at"
)

// Keys of the copy of a quarantined message.
const (
	QuarantineReason   = "once_quarantine_reason"
	QuarantineConsumer = "once_quarantine_consumer"
	QuarantineTopic    = "once_quarantine_topic"
	QuarantineEntry    = "once_quarantine_entry"
	QuarantineMessage  = "once_quarantine_message_id"
	QuarantineError    = "once_quarantine_error"
)
