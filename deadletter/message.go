package deadletter

import (
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/outboxrow"
)

// Message contains the fields that dead letters and sent messages have in common.
type Message struct {
	// ID is the ID of the row. Pass it to Get, Replay and Discard. Position is the position
	// of the message in the outbox.
	ID, Position int64

	// MessageID, Topic and OrderingKey are the values of the message. OrderingKey is "" if
	// the message has no ordering key.
	MessageID, Topic, OrderingKey string

	// Payload is the body, byte for byte. It is set by Get, but not by List. Size is the
	// length of the body in bytes. Both Get and List set it.
	Payload []byte
	Size    int

	// Metadata is nil if the metadata of the row is not in the form that package outbox
	// writes, or if Config.WithoutContent is set.
	Metadata message.Metadata

	// CreatedAt is the time at which the message was written to the outbox.
	CreatedAt time.Time
}

const messageColumns = `id, position, message_id, topic, COALESCE(ordering_key, ''), octet_length(payload),
	CAST(metadata AS text), {millis created_at}`

// scanMessage reads messageColumns, and then the columns that only one of the two
// tables has. It stores the latter columns in dest.
func scanMessage(rows *sql.Rows, dest ...any) (Message, error) {
	var (
		m        Message
		metadata []byte
		created  int64
	)
	err := rows.Scan(append([]any{
		&m.ID, &m.Position, &m.MessageID, &m.Topic, &m.OrderingKey, &m.Size, &metadata, &created,
	}, dest...)...)
	if err != nil {
		return Message{}, err
	}
	if m.Metadata, err = outboxrow.DecodeMetadata(metadata); err != nil {
		m.Metadata = nil // a damaged row is returned without its metadata
	}
	m.CreatedAt = fromMillis(created)
	return m, nil
}

func fromMillis(millis int64) time.Time { return time.UnixMilli(millis).UTC() }
