// Package meta defines the metadata keys that several packages use. The public packages
// export these keys, too.
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

// Keys of Watermill's package components/delay, which sets both. DelayedUntil is a time
// in RFC 3339 without fractions of a second, rounded down. DelayedFor is the duration
// from the call that set the keys until then. An outbox obeys these keys like DueAt.
const (
	DelayedUntil = "_watermill_delayed_until"
	DelayedFor   = "_watermill_delayed_for"
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

	// Times is the header of a message in a broker that contains both times, see
	// [JoinTimes]. It is never a key of the metadata that a handler sees. With one header
	// in place of two, the broker needs less processor time for a message.
	Times = "once_times"
)

// Keys that describe a delivery. The marshaler sets them from the broker's data, and
// ignores headers of the message with these names.
const (
	// Redelivered is "true" if the broker has delivered the message before.
	Redelivered = "once_redelivered"

	// DeliveryCount is how many times the broker has delivered the message before. It is
	// missing if the broker does not count deliveries.
	DeliveryCount = "once_delivery_count"

	// Copied is "true" in the metadata that a handler sees, if the metadata contains keys
	// that may not be passed on. The metadata of a produced message has this key only if
	// the handler has copied it, and then the outbox removes the copied headers.
	Copied = "once_copied"
)
