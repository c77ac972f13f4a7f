// Package meta names the metadata keys that mean something to more than one
// package. The packages that people import export them again.
package meta

// What a producer may say about a message.
const (
	// Topic is where a message that a handler produced is to go, when not to
	// the handler's publish topic. It is taken off when the message is stored.
	Topic = "once_topic"

	// OrderingKey: messages with the same key are forwarded in order.
	OrderingKey = "once_ordering_key"

	// DueAt delays sending until then; RFC 3339 with nanoseconds.
	DueAt = "once_due_at"

	// TenantID is whose message it is.
	TenantID = "once_tenant_id"

	// The aggregate that an event is about, and its version after the event.
	AggregateType    = "once_aggregate_type"
	AggregateID      = "once_aggregate_id"
	AggregateVersion = "once_aggregate_version"

	// EventType is the kind of event.
	EventType = "once_event_type"

	// CausationID is the id of the message whose handling produced this one.
	CausationID = "once_causation_id"

	// EditedFrom is the id of the message that this one stands for, of which
	// an operator has made it.
	EditedFrom = "once_edited_from"
)

// What the copy of a quarantined message says about it.
const (
	QuarantineReason   = "once_quarantine_reason"
	QuarantineConsumer = "once_quarantine_consumer"
	QuarantineTopic    = "once_quarantine_topic"
	QuarantineEntry    = "once_quarantine_entry"
	QuarantineMessage  = "once_quarantine_message_id"
	QuarantineError    = "once_quarantine_error"
)
