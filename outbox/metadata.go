package outbox

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
)

// Metadata keys that mean something to this module and to tools around it.
const (
	// OrderingKey: messages with the same key are forwarded in the order in which
	// they were inserted. That is the order of commits if their transactions lock
	// before they publish, see the package's documentation. It is kept in the
	// metadata.
	OrderingKey = meta.OrderingKey

	// DueAt is when to send, in RFC 3339 and by the database's clock. A time
	// that has passed is now. It is taken off when the message is stored.
	DueAt = meta.DueAt

	// Topic is where a message that a handler returned is to go. The outbox
	// itself goes by the topic that Publish was called with, and takes it off.
	Topic = meta.Topic

	// TenantID is whose message it is.
	TenantID = meta.TenantID

	// AggregateType, AggregateID and AggregateVersion say what an event is
	// about, and the version that this was in after the event.
	AggregateType    = meta.AggregateType
	AggregateID      = meta.AggregateID
	AggregateVersion = meta.AggregateVersion

	// EventType is the kind of event.
	EventType = meta.EventType

	// CausationID is the id of the message whose handling produced this one.
	CausationID = meta.CausationID
)

// SetOrderingKey has msg forwarded after all messages of the same key that were
// inserted before it. See [OrderingKey] for what that means for transactions that
// run at the same time.
func SetOrderingKey(msg *message.Message, key string) { set(msg, OrderingKey, key) }

// SetDueAt delays msg until at. It excludes an ordering key.
func SetDueAt(msg *message.Message, at time.Time) {
	set(msg, DueAt, at.UTC().Format(time.RFC3339Nano))
}

// SetTopic says where a message that a handler returns is to go.
func SetTopic(msg *message.Message, topic string) { set(msg, Topic, topic) }

// SetTenant says whose message msg is.
func SetTenant(msg *message.Message, id string) { set(msg, TenantID, id) }

// SetAggregate says what msg is about, and the version that this is in after
// the event.
func SetAggregate(msg *message.Message, kind, id string, version int64) {
	set(msg, AggregateType, kind)
	set(msg, AggregateID, id)
	set(msg, AggregateVersion, strconv.FormatInt(version, 10))
}

// SetEventType says what kind of event msg is.
func SetEventType(msg *message.Message, kind string) { set(msg, EventType, kind) }

// SetCausation says that msg was produced by handling the message of that id.
func SetCausation(msg *message.Message, id string) { set(msg, CausationID, id) }

func set(msg *message.Message, key, value string) {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[key] = value
}
