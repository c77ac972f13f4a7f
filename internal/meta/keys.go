// Package meta defines the metadata keys that several packages use. The public packages
// export these keys, too.
//
// To read the code, start with keys.go and broker.go, then foreign.go (which keys are
// passed on between services), stamps.go and steering.go.
package meta

// Keys that a producer may set.
const (
	// Topic is the topic of a message that a handler produced. The key is needed only
	// if the topic is not the handler's publish topic. It is removed when the message
	// is stored.
	Topic = "once_topic"

	// OrderingKey is the ordering key: messages with the same key keep their order.
	OrderingKey = "once_ordering_key"

	// DueAt is the earliest time at which the message is sent, in RFC 3339 with
	// nanoseconds.
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

	// EditedFrom marks a message that an operator has edited. Its value is the id of the
	// original message.
	EditedFrom = "once_edited_from"
)

// Keys for the times at which a message was stored and sent. The forwarder sets these
// keys when it sends the message, and replaces values that a handler has copied from
// another message. Any sender can write these keys, so use them only for metrics and
// for the timestamp of an AMQP message.
const (
	// CreatedAt is the time at which the message was stored in the outbox: the database's
	// time at the beginning of the transaction.
	CreatedAt = "once_created_at"

	// PublishedAt is the time at which the message was last given to the publisher, by the
	// clock of the forwarder.
	PublishedAt = "once_published_at"
)

// Keys of the copy that is published when a message is quarantined.
const (
	QuarantineReason   = "once_quarantine_reason"
	QuarantineConsumer = "once_quarantine_consumer"
	QuarantineTopic    = "once_quarantine_topic"
	QuarantineEntry    = "once_quarantine_entry"
	QuarantineMessage  = "once_quarantine_message_id"
	QuarantineError    = "once_quarantine_error"
)
