package outbox

import (
	"encoding/json"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/slot"
)

// record is a row of the outbox.
type record struct {
	id       string
	key      string // or ""
	slot     int
	payload  []byte
	metadata string // a JSON object
	due      time.Time
	size     int // of payload and metadata, in bytes
}

// newRecord returns the row of a checked message. metadata replaces the metadata of
// the message.
func newRecord(msg *message.Message, metadata message.Metadata, due time.Time) record {
	r := record{
		id:      msg.UUID,
		key:     msg.Metadata[OrderingKey],
		payload: msg.Payload,
		due:     due,
	}
	if r.payload == nil {
		r.payload = []byte{} // nil would be NULL
	}
	r.slot = slot.Of(r.id, r.key)
	r.metadata = encode(metadata)
	r.size = len(r.payload) + len(r.metadata)
	return r
}

// encode returns metadata as JSON, without keys that are only for the outbox and
// keys that describe an earlier delivery.
func encode(metadata message.Metadata) string {
	kept := meta.Sent(metadata)
	if len(kept) == 0 {
		return "{}"
	}
	text, _ := json.Marshal(kept) // strings cannot fail to encode
	return string(text)
}
