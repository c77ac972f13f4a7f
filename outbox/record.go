package outbox

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/slot"
)

// record contains the columns of a row of the outbox.
type record struct {
	id       string
	key      string // ordering key, or ""
	slot     int
	payload  []byte
	metadata string // a JSON object
	due      time.Time
	size     int // size of payload and metadata, in bytes
}

// newRecord returns the row for a checked message. The row contains the parameter
// metadata instead of the metadata of msg.
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
	r.slot = slot.Of(r.id, r.key)
	r.metadata = encode(metadata)
	r.size = len(r.payload) + len(r.metadata)
	return r
}

// encode returns metadata as JSON. It leaves out the keys that an outbox does not
// store, see meta.Stored.
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

// appendJSON appends text in the same form as encoding/json. A string without special
// characters is only copied, because encoding/json is slow: for six headers it takes
// longer than all other work of Publish.
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
