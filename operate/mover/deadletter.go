package mover

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parkedrows"
)

// envelope is what the publisher of Watermill's own forwarder puts around a message.
type envelope struct {
	DestinationTopic string            `json:"destination_topic"`
	UUID             string            `json:"uuid"`
	Payload          []byte            `json:"payload"`
	Metadata         map[string]string `json:"metadata"`
}

type unwrapped struct {
	row

	topic string
	msg   *message.Message // nil if the envelope is malformed
	err   error            // why the envelope is malformed, or nil
}

// unwrap accepts the same envelopes as Watermill's own forwarder.
func unwrap(r row) unwrapped {
	var e envelope
	err := json.Unmarshal(r.payload, &e)
	if err == nil && e.DestinationTopic == "" {
		err = errors.New("it has no destination topic")
	}
	if err != nil {
		return unwrapped{row: r, err: fmt.Errorf("not an envelope of Watermill's forwarder: %w", err)}
	}
	msg := message.NewMessage(e.UUID, e.Payload)
	msg.Metadata = e.Metadata
	return unwrapped{row: r, topic: e.DestinationTopic, msg: msg}
}

const (
	reasonMalformed = outboxrow.DeadMalformed
	reasonInvalid   = outboxrow.DeadInvalid
)

type deadLetter struct {
	offset   int64
	id       string
	topic    string
	payload  []byte
	metadata string // a JSON object
	reason   string
	text     string
}

func (m *Mover) refused(u unwrapped, err error) deadLetter {
	if !storable(u) {
		return m.asStored(u.row, reasonInvalid, err)
	}
	metadata := "{}"
	if len(u.msg.Metadata) > 0 {
		metadata = encode(u.msg.Metadata)
	}
	return deadLetter{
		offset: u.offset, id: u.msg.UUID, topic: u.topic, payload: u.msg.Payload, metadata: metadata,
		reason: reasonInvalid, text: explain(err),
	}
}

// maxIndexed is the longest text in bytes that PostgreSQL can always store in an index. The limit is
// 2,704 bytes together with other columns.
const maxIndexed = 2000

// Strings from JSON are valid UTF-8, so only NUL characters and indexed texts must be checked.
func storable(u unwrapped) bool {
	for _, text := range []string{u.msg.UUID, u.topic} {
		if hasNUL(text) || len(text) > maxIndexed {
			return false
		}
	}
	return withoutNUL(u.msg.Metadata)
}

func withoutNUL(metadata map[string]string) bool {
	for key, value := range metadata {
		if hasNUL(key) || hasNUL(value) {
			return false
		}
	}
	return true
}

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }

func (m *Mover) asStored(r row, reason string, err error) deadLetter {
	return deadLetter{
		offset: r.offset, id: parkedrows.Clean(r.id, parkedrows.MaxName), topic: m.config.ForwarderTopic,
		payload: r.payload, metadata: storedMetadata(r.metadata),
		reason: reason, text: explain(err),
	}
}

// storedMetadata returns the metadata of a row, any JSON, as the flat map of strings that dead
// letters require, without NUL characters and halves of surrogate pairs. In another form, it
// becomes a single string.
func storedMetadata(stored sql.NullString) string {
	if !stored.Valid {
		return "{}"
	}
	var metadata map[string]string
	if json.Unmarshal([]byte(stored.String), &metadata) == nil && metadata != nil && withoutNUL(metadata) {
		if text := encode(metadata); !strings.ContainsRune(text, utf8.RuneError) { // Go decodes half surrogates to RuneError
			return text
		}
	}
	return encode(map[string]string{"metadata": stored.String})
}

func encode(metadata map[string]string) string {
	text, _ := json.Marshal(metadata) // encoding strings cannot fail
	return string(text)
}

func explain(err error) string { return parkedrows.Clean(err.Error(), 2000) }

// The outcome of an invalid message is unknown, because Watermill's own forwarder may have sent it
// without acking it.
func (m *Mover) insertDeadLetter(ctx context.Context, tx *sql.Tx, d deadLetter) error {
	if d.payload == nil {
		d.payload = []byte{} // nil would be stored as NULL
	}
	inserted, err := dialect.Affected(tx.ExecContext(ctx, m.sql.insertDead, d.offset, d.id, d.topic, d.payload, d.metadata, d.text, d.reason,
		d.reason == reasonInvalid, parkedrows.Fingerprint(parkedrows.Cause{Reason: d.reason, Text: d.text, MessageID: d.id})))
	if err == nil && inserted == 0 {
		err = m.dialect.Unchanged("outbox_dead", "the row of a dead letter was not inserted")
	}
	return err
}
