package deadletter

import (
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/outboxrow"
)

// Message is the part that dead letters and sent messages have in common.
type Message struct {
	// ID is the ID of the row, which Get, Replay and Discard take. Position is the
	// position that the message had in the outbox.
	ID, Position int64

	// MessageID, Topic and OrderingKey are those of the message. OrderingKey is
	// empty if the message has none.
	MessageID, Topic, OrderingKey string

	// Payload is the body, byte for byte. Get fills it in, List does not. Size is
	// the length of the body in bytes, after both.
	Payload []byte
	Size    int

	// Metadata is nil if the row has metadata that package outbox does not write,
	// and with Config.WithoutContent.
	Metadata message.Metadata

	// CreatedAt is when the message was written to the outbox.
	CreatedAt time.Time
}

const messageColumns = `id, position, message_id, topic, COALESCE(ordering_key, ''), octet_length(payload),
	CAST(metadata AS text), {millis created_at}`

// scanMessage reads messageColumns and the table's own columns.
func scanMessage(rows *sql.Rows, own ...any) (Message, error) {
	var (
		m        Message
		metadata []byte
		created  int64
	)
	err := rows.Scan(append([]any{
		&m.ID, &m.Position, &m.MessageID, &m.Topic, &m.OrderingKey, &m.Size, &metadata, &created,
	}, own...)...)
	if err != nil {
		return Message{}, err
	}
	if m.Metadata, err = outboxrow.DecodeMetadata(metadata); err != nil {
		m.Metadata = nil // a damaged row is shown all the same
	}
	m.CreatedAt = fromMillis(created)
	return m, nil
}

func fromMillis(millis int64) time.Time { return time.UnixMilli(millis).UTC() }
