package deadletter

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// SentMessage is a message that the broker confirmed.
type SentMessage struct {
	Message

	// SentAt is when the forwarder recorded the confirm.
	SentAt time.Time
}

// SentLog is the log of the messages that the forwarder sent. Forwarders write it
// only if forwarder.Config.KeepSent is set.
type SentLog struct {
	table table
}

// NewSentLog returns the sent log in db, or an error that names each field of
// config that cannot be used. The tables must exist, see schema.Up.
func NewSentLog(db *sql.DB, config Config) (*SentLog, error) {
	t, err := table{name: `{outbox_sent}`, row: "sent message", subject: "sent", arrived: "sent_at"}.open(db, config)
	if err != nil {
		return nil, err
	}
	return &SentLog{t}, nil
}

// List returns a page of the messages that match, in ascending order of their IDs
// and without their payloads.
func (s *SentLog) List(ctx context.Context, f Filter) ([]SentMessage, error) {
	messages, err := s.list(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("deadletter: sent log: list: %w", err)
	}
	return messages, nil
}

// Get returns one message with its payload, or [ErrNotFound].
func (s *SentLog) Get(ctx context.Context, id int64) (SentMessage, error) {
	messages, err := s.list(ctx, Filter{IDs: []int64{id}})
	if err == nil && len(messages) == 0 {
		err = s.table.notFound(id)
	}
	if err == nil {
		messages[0].Payload, err = s.table.payload(ctx, id)
	}
	if err != nil {
		return SentMessage{}, fmt.Errorf("deadletter: sent log: get: %w", err)
	}
	return messages[0], nil
}

// Count returns how many messages match. It ignores Filter.Limit.
func (s *SentLog) Count(ctx context.Context, f Filter) (int, error) {
	n, _, err := s.table.count(ctx, f)
	if err != nil {
		return 0, fmt.Errorf("deadletter: sent log: count: %w", err)
	}
	return n, nil
}

func (s *SentLog) list(ctx context.Context, f Filter) ([]SentMessage, error) {
	var messages []SentMessage
	err := s.table.list(ctx, f, `{millis sent_at}`, func(rows *sql.Rows) error {
		var (
			m    SentMessage
			sent int64
			err  error
		)
		m.Message, err = scanMessage(rows, &sent)
		m.SentAt = fromMillis(sent)
		messages = append(messages, m)
		return err
	})
	return messages, err
}
