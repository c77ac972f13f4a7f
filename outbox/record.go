package outbox

import (
	"encoding/json"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/slot"
)

// record is a message as it is stored.
type record struct {
	id       string
	key      string // "" is none
	slot     int
	payload  []byte
	metadata string // a JSON object
	due      time.Time
	size     int // bytes that come from the caller
}

// newRecord turns a message that was checked into its row, with metadata in
// place of its own.
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

// encode leaves out what is for the way into the outbox only, and what was said
// about another delivery.
func encode(metadata message.Metadata) string {
	kept := meta.Sent(metadata)
	if len(kept) == 0 {
		return "{}"
	}
	text, _ := json.Marshal(kept) // strings cannot fail to encode
	return string(text)
}
