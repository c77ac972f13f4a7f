package outbox

import (
	"encoding/json"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// slots is the number of rows of once_slots, fixed by the migration. A change
// would move keys between owners while their messages wait.
const slots = 64

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
	r.slot = slotOf(r.id)
	if r.key != "" {
		r.slot = slotOf(r.key)
	}
	r.metadata = encode(metadata)
	r.size = len(r.payload) + len(r.metadata)
	return r
}

// encode leaves out what is for the way into the outbox only.
func encode(metadata message.Metadata) string {
	kept := metadata
	if metadata[DueAt] != "" || metadata[Topic] != "" {
		kept = make(message.Metadata, len(metadata))
		for key, value := range metadata {
			if key != DueAt && key != Topic {
				kept[key] = value
			}
		}
	}
	if len(kept) == 0 {
		return "{}"
	}
	text, _ := json.Marshal(kept) // strings cannot fail to encode
	return string(text)
}

// slotOf is FNV-1a, modulo the number of slots: the same in every version of
// this module.
func slotOf(s string) int {
	hash := uint32(2166136261)
	for i := range len(s) {
		hash = (hash ^ uint32(s[i])) * 16777619
	}
	return int(hash % slots)
}
