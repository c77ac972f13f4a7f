package mover

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parked"
)

// Why a row became a dead letter.
const (
	reasonMalformed = outboxrow.DeadMalformed
	reasonInvalid   = outboxrow.DeadInvalid
)

// letter is a dead letter.
type letter struct {
	offset   int64
	id       string
	topic    string
	payload  []byte
	metadata string // a JSON object
	reason   string
	text     string
}

// refused is the dead letter of a message that the outbox does not take.
func (m *Mover) refused(u unwrapped, err error) letter {
	if !storable(u) {
		return m.asStored(u.row, reasonInvalid, err)
	}
	metadata := "{}"
	if len(u.msg.Metadata) > 0 {
		metadata = encode(u.msg.Metadata)
	}
	return letter{
		offset: u.offset, id: u.msg.UUID, topic: u.topic, payload: u.msg.Payload, metadata: metadata,
		reason: reasonInvalid, text: explain(err),
	}
}

// storable says whether text columns can hold the message. Its texts are valid
// UTF-8, as they come out of JSON.
func storable(u unwrapped) bool {
	return !hasNUL(u.msg.UUID) && !hasNUL(u.topic) && plain(u.msg.Metadata)
}

func plain(metadata map[string]string) bool {
	for key, value := range metadata {
		if hasNUL(key) || hasNUL(value) {
			return false
		}
	}
	return true
}

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }

// asStored is the dead letter that has what the stock table has.
func (m *Mover) asStored(r row, reason string, err error) letter {
	return letter{
		offset: r.offset, id: r.id, topic: m.config.ForwarderTopic, payload: r.payload, metadata: storedMetadata(r.metadata),
		reason: reason, text: explain(err),
	}
}

// storedMetadata returns what the stock table has. Its column takes any JSON,
// ours a flat map of texts without NUL and half surrogates: what is none is
// kept as one text.
func storedMetadata(stored sql.NullString) string {
	if !stored.Valid {
		return "{}"
	}
	var metadata map[string]string
	if json.Unmarshal([]byte(stored.String), &metadata) == nil && metadata != nil && plain(metadata) {
		if text := encode(metadata); !strings.ContainsRune(text, utf8.RuneError) { // what Go makes of a half
			return text
		}
	}
	return encode(map[string]string{"metadata": stored.String})
}

func encode(metadata map[string]string) string {
	text, _ := json.Marshal(metadata) // strings cannot fail to encode
	return string(text)
}

func explain(err error) string { return parked.Clean(err.Error(), 2000) }

// bury stores a dead letter. The stock forwarder may have sent an invalid one
// without having acked it.
func (m *Mover) bury(ctx context.Context, tx *sql.Tx, l letter) error {
	if l.payload == nil {
		l.payload = []byte{} // nil would be NULL
	}
	_, err := tx.ExecContext(ctx, m.sql.bury, l.offset, l.id, l.topic, l.payload, l.metadata, l.text, l.reason,
		l.reason == reasonInvalid)
	return err
}
