package outbox

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
)

// NewID returns a new message id: a UUID of version 7, which begins with the time. New ids are
// added at the end of an index, and the inbox can be partitioned by day, see schema.ByDay. Set it
// as NewUUID of Watermill's cqrs marshalers.
func NewID() string { return meta.NewID() }

// NewMessage returns a message with an id from [NewID].
func NewMessage(payload []byte) *message.Message { return message.NewMessage(NewID(), payload) }

// Metadata keys of this module.
const (
	// OrderingKey is the ordering key. Messages with the same key are sent in the order of their
	// inserts, see the package documentation for concurrent transactions.
	OrderingKey = meta.OrderingKey

	// DueAt is the earliest time at which the message may be sent, in RFC 3339, by the database's
	// clock. A time in the past means now. It is not stored in the metadata. Without it, the delays
	// of Watermill's package components/delay apply.
	DueAt = meta.DueAt

	// Topic is the topic of a message that a handler returns. An outbox publisher uses the topic
	// passed to Publish, and does not store this key.
	Topic = meta.Topic

	TenantID = meta.TenantID

	// AggregateVersion is the version of the aggregate after the event.
	AggregateType    = meta.AggregateType
	AggregateID      = meta.AggregateID
	AggregateVersion = meta.AggregateVersion

	// EventType is the type of the event.
	EventType = meta.EventType

	// CausationID is the id of the message whose handler produced this message.
	CausationID = meta.CausationID

	// CreatedAt and PublishedAt are in every message that a forwarder sends, in RFC 3339 with
	// milliseconds: when the transaction that stored the message began, by the clock of the
	// database, and when the forwarder passed it to the publisher, by its own clock. Publish does
	// not store these keys. Other senders can write any value, so make no decision that depends on
	// them.
	CreatedAt   = meta.CreatedAt
	PublishedAt = meta.PublishedAt
)

// SetOrderingKey sets the ordering key of msg, which is sent after all messages of the key that
// were inserted before it. See [OrderingKey] for concurrent transactions.
func SetOrderingKey(msg *message.Message, key string) { set(msg, OrderingKey, key) }

// SetDueAt sets when msg may be sent. A message with an ordering key cannot be delayed.
func SetDueAt(msg *message.Message, at time.Time) {
	set(msg, DueAt, at.UTC().Format(time.RFC3339Nano))
}

// SetTopic sets the topic of a message that a handler returns. To send a message to
// several topics, return a copy of it for each topic.
func SetTopic(msg *message.Message, topic string) { set(msg, Topic, topic) }

// SetTenant sets the tenant of msg.
func SetTenant(msg *message.Message, id string) { set(msg, TenantID, id) }

// SetAggregate sets the aggregate of msg, and the version of the aggregate after the event.
func SetAggregate(msg *message.Message, kind, id string, version int64) {
	set(msg, AggregateType, kind)
	set(msg, AggregateID, id)
	set(msg, AggregateVersion, strconv.FormatInt(version, 10))
}

// SetEventType sets the event type of msg.
func SetEventType(msg *message.Message, kind string) { set(msg, EventType, kind) }

// SetCausation sets the id of the message whose handler produced msg.
func SetCausation(msg *message.Message, id string) { set(msg, CausationID, id) }

func set(msg *message.Message, key, value string) {
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata[key] = value
}

type record struct {
	id       string
	key      string // ordering key, or ""
	slot     int
	payload  []byte
	metadata string // a JSON object
	due      time.Time
	size     int // size of payload and metadata, in bytes
}

func newRecord(msg *message.Message, metadata message.Metadata, due time.Time) record {
	r := record{
		id:      msg.UUID,
		key:     msg.Metadata[OrderingKey],
		payload: msg.Payload,
		due:     due,
	}
	if r.payload == nil {
		r.payload = []byte{} // nil would be stored as NULL
	}
	r.slot = outboxrow.SlotOf(r.id, r.key)
	r.metadata = encode(metadata)
	r.size = len(r.payload) + len(r.metadata)
	return r
}

// encode leaves out the keys that an outbox does not store, see meta.Stored.
func encode(metadata message.Metadata) string {
	kept := meta.Stored(metadata)
	if len(kept) == 0 {
		return "{}"
	}
	const each = 6 // quotes, colon and comma of a key and its value
	size := 2
	for key, value := range kept {
		size += len(key) + len(value) + each
	}
	b := make([]byte, 1, size)
	b[0] = '{'
	for i, key := range slices.Sorted(maps.Keys(kept)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendJSON(b, key), ':')
		b = appendJSON(b, kept[key])
	}
	return string(append(b, '}'))
}

// For six headers, encoding/json takes longer than all other work of Publish.
func appendJSON(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			escaped, _ := json.Marshal(text) // encoding a string cannot fail
			return append(b, escaped...)
		}
	}
	b = append(append(b, '"'), text...)
	return append(b, '"')
}
