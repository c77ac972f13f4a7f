// Package meta defines the metadata keys that several packages use, and public ones export.
package meta

const (
	// Topic is the topic of a message that a handler produced, if it is not the handler's publish
	// topic. It is not stored.
	Topic = "once_topic"

	OrderingKey = "once_ordering_key"

	// DueAt is the earliest time at which the message is sent, in RFC 3339 with nanoseconds.
	DueAt = "once_due_at"

	TenantID = "once_tenant_id"

	// AggregateVersion is the version of an event's aggregate after the event.
	AggregateType    = "once_aggregate_type"
	AggregateID      = "once_aggregate_id"
	AggregateVersion = "once_aggregate_version"

	EventType = "once_event_type"

	CausationID = "once_causation_id"

	// EditedFrom is the id of the message that an operator has edited.
	EditedFrom = "once_edited_from"
)

// Watermill's package components/delay sets both: DelayedUntil in RFC 3339 without fractions of a
// second, rounded down, and DelayedFor, the duration from then on. An outbox obeys them like DueAt.
const (
	DelayedUntil = "_watermill_delayed_until"
	DelayedFor   = "_watermill_delayed_for"
)

// The forwarder sets these times when it sends a message, in place of values that a handler has
// copied. Any sender can write them, so use them only for metrics and for the timestamp of an AMQP
// message.
const (
	// CreatedAt is the database's time at the beginning of the transaction that stored the message.
	CreatedAt = "once_created_at"

	// PublishedAt is when the forwarder last gave the message to the publisher, by its clock.
	PublishedAt = "once_published_at"

	// Times is one header with both times for less processor time in the broker, see [JoinTimes].
	// Handlers never see it.
	Times = "once_times"
)

// The marshaler sets these from the broker's data, and ignores headers with these names.
const (
	// Redelivered is "true" if the broker has delivered the message before.
	Redelivered = "once_redelivered"

	// DeliveryCount is how many times the broker has delivered the message before, if it counts.
	DeliveryCount = "once_delivery_count"

	// Copied is "true" in the metadata that a handler sees, if some of it may not be passed on. In
	// a produced message it shows that the handler has copied it, and the outbox removes the copied
	// headers.
	Copied = "once_copied"
)
