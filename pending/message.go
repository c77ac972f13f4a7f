package pending

import (
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/outboxrow"
)

// State says why a message is still in the outbox.
type State string

// States of a message.
const (
	// Due: a forwarder sends the message as soon as it can, or is sending it.
	Due State = "due"

	// BackingOff: the broker refused the message, or confirmed no message of its topic.
	// The message is tried again at DueAt.
	BackingOff State = "backing_off"

	// Delayed: the producer delayed the message until DueAt.
	Delayed State = "delayed"

	// Blocked: the message waits for another message of its ordering key, BlockedBy.
	Blocked State = "blocked"
)

// Message is a message that waits to be forwarded.
type Message struct {
	// ID is the position in the outbox. Pass it to Get, Retry and Cancel.
	ID int64

	// MessageID, Topic and OrderingKey are copied from the message. OrderingKey is "" if
	// the message has none.
	MessageID, Topic, OrderingKey string

	// Payload is the body, byte for byte. Only Get sets it. Size is the length of the body
	// in bytes. Get and List set it.
	Payload []byte
	Size    int

	// Metadata is nil if the row contains metadata in a form that package outbox does not
	// write, or if Config.WithoutContent is set.
	Metadata message.Metadata

	// CreatedAt is the time at which the message was written to the outbox.
	CreatedAt time.Time

	State State

	// Paused reports whether the message waits because its topic or its tenant is paused,
	// see [Messages.Pause]. It is false for a message that waits behind a paused message of
	// its ordering key. With Config.WithoutContent, it is true only for paused topics.
	Paused bool

	// DueAt is the time at which the message is due, or zero if it has been due since
	// CreatedAt.
	DueAt time.Time

	// Attempts is the number of times that the broker refused the message. LastError is the
	// latest error of the publisher, and FailingSince is the time of the first error.
	Attempts     int
	LastError    string
	FailingSince time.Time

	// Unknown reports whether an earlier attempt may have sent the message.
	Unknown bool

	// BlockedBy is the ID of the message that blocks the key of a Blocked message. That
	// message can be a dead letter, see deadletter.Letter.Position. In other states
	// BlockedBy is 0.
	BlockedBy int64
}

// messageColumns are the columns of a message that scanMessage reads.
const messageColumns = `o.position, o.message_id, o.topic, COALESCE(o.ordering_key, ''), octet_length(o.payload),
	CAST(o.metadata AS text), {millis o.created_at}, ` + outboxrow.State + `, {millis o.due_at}, o.attempts, COALESCE(o.last_error, ''),
	{millis o.failing_since}, o.unknown,
	COALESCE((SELECT h.position FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key AND h.position <> o.position), 0)`

func scanMessage(scan func(dest ...any) error) (Message, error) {
	var (
		m            Message
		metadata     []byte
		created      int64
		due, failing sql.NullInt64
	)
	err := scan(&m.ID, &m.MessageID, &m.Topic, &m.OrderingKey, &m.Size, &metadata, &created, &m.State, &due, &m.Attempts, &m.LastError,
		&failing, &m.Unknown, &m.BlockedBy)
	if err != nil {
		return Message{}, err
	}
	if m.Metadata, err = outboxrow.DecodeMetadata(metadata); err != nil {
		m.Metadata = nil // a damaged row is still shown
	}
	m.CreatedAt = fromMillis(created)
	if due.Valid {
		m.DueAt = fromMillis(due.Int64)
	}
	if failing.Valid {
		m.FailingSince = fromMillis(failing.Int64)
	}
	return m, nil
}

func fromMillis(millis int64) time.Time { return time.UnixMilli(millis).UTC() }
