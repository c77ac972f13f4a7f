package outbox

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
)

// Metadata keys of this module.
const (
	// OrderingKey is the ordering key. Messages with the same key are forwarded in
	// the order in which they were inserted. This is the order of commits if their
	// transactions lock before they publish, see the package documentation.
	OrderingKey = meta.OrderingKey

	// DueAt is the earliest time to send the message, in RFC 3339, by the
	// database's clock. A time in the past means now. Publish does not store this
	// key in the metadata.
	DueAt = meta.DueAt

	// Topic is the topic of a message that a handler returns. An outbox publisher
	// ignores it and uses the topic that Publish was called with. Publish does not
	// store this key in the metadata.
	Topic = meta.Topic

	// TenantID is the tenant of the message.
	TenantID = meta.TenantID

	// AggregateType, AggregateID and AggregateVersion name the aggregate of an
	// event, and the version of the aggregate after the event.
	AggregateType    = meta.AggregateType
	AggregateID      = meta.AggregateID
	AggregateVersion = meta.AggregateVersion

	// EventType is the type of the event.
	EventType = meta.EventType

	// CausationID is the id of the message whose handler produced this message.
	CausationID = meta.CausationID

	// CreatedAt and PublishedAt are in every message that a forwarder sends: when the
	// transaction began that stored the message, by the clock of the database, and when
	// the forwarder gave it to the publisher, by the clock of the forwarder. They are
	// times in RFC 3339 with milliseconds. Publish ignores and does not store them.
	// Other senders can write what they like, so decide nothing by these times.
	CreatedAt   = meta.CreatedAt
	PublishedAt = meta.PublishedAt
)

// SetOrderingKey sets the ordering key: msg is forwarded after all messages of the
// same key that were inserted before it. See [OrderingKey] for concurrent
// transactions.
func SetOrderingKey(msg *message.Message, key string) { set(msg, OrderingKey, key) }

// SetDueAt delays msg until at. A message with an ordering key cannot be delayed.
func SetDueAt(msg *message.Message, at time.Time) {
	set(msg, DueAt, at.UTC().Format(time.RFC3339Nano))
}

// SetTopic sets the topic of a message that a handler returns.
func SetTopic(msg *message.Message, topic string) { set(msg, Topic, topic) }

// SetTenant sets the tenant of msg.
func SetTenant(msg *message.Message, id string) { set(msg, TenantID, id) }

// SetAggregate sets the aggregate of msg, and the version of the aggregate after the
// event.
func SetAggregate(msg *message.Message, kind, id string, version int64) {
	set(msg, AggregateType, kind)
	set(msg, AggregateID, id)
	set(msg, AggregateVersion, strconv.FormatInt(version, 10))
}

// SetEventType sets the type of the event msg.
func SetEventType(msg *message.Message, kind string) { set(msg, EventType, kind) }

// SetCausation sets the id of the message whose handler produced msg.
func SetCausation(msg *message.Message, id string) { set(msg, CausationID, id) }

func set(msg *message.Message, key, value string) {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[key] = value
}
