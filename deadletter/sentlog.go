package deadletter

import (
	"cmp"
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

// SentLog is the log of the messages that the forwarder sent. Forwarders write the log
// only if forwarder.Config.KeepSent is set.
type SentLog struct {
	table table
}

// NewSentLog returns the sent log in db. If config is invalid, the error names each
// invalid field. The tables must exist, see schema.Up.
func NewSentLog(db *sql.DB, config Config) (*SentLog, error) {
	t, err := table{name: `{outbox_sent}`, row: "sent message", subject: "sent", arrived: "sent_at"}.open(db, config)
	if err != nil {
		return nil, err
	}
	return &SentLog{t}, nil
}

// SentPage is a part of the sent log.
type SentPage struct {
	// Messages are in ascending order of their IDs. A page can contain fewer messages than
	// Filter.Limit, or none, even if later pages contain messages.
	Messages []SentMessage

	// Next is the value of Filter.AfterID for the next page, or 0 if this is the last page.
	Next int64
}

// List returns a page of the messages that match f, without their payloads. It reads at
// most 50,000 rows whose IDs are above Filter.AfterID. With Filter.SentAfter, it begins
// shortly before the first row that was sent after this time. With Filter.MessageID, an
// index finds the messages in the whole log. With Filter.AggregateID, an index finds
// them if the aggregate has at most 5,000 messages.
func (s *SentLog) List(ctx context.Context, f Filter) (SentPage, error) {
	p, err := s.list(ctx, f, false)
	if err != nil {
		return SentPage{}, fmt.Errorf("deadletter: sent log: list: %w", err)
	}
	return p, nil
}

// Get returns one message with its payload, or [ErrNotFound].
func (s *SentLog) Get(ctx context.Context, id int64) (SentMessage, error) {
	p, err := s.list(ctx, Filter{IDs: []int64{id}}, false)
	if err == nil && len(p.Messages) == 0 {
		err = s.table.notFound(id)
	}
	if err == nil {
		p.Messages[0].Payload, err = s.table.payload(ctx, id)
	}
	if err != nil {
		return SentMessage{}, fmt.Errorf("deadletter: sent log: get: %w", err)
	}
	return p.Messages[0], nil
}

// Count counts the messages that match. It looks at no more messages than List does. If
// Filter.Limit is set, it counts no more messages than this. Count.Next says where the
// next call continues.
func (s *SentLog) Count(ctx context.Context, f Filter) (Count, error) {
	n, err := s.table.countPart(ctx, f)
	if err != nil {
		return Count{}, fmt.Errorf("deadletter: sent log: count: %w", err)
	}
	return n, nil
}

func (s *SentLog) list(ctx context.Context, f Filter, everywhere bool) (p SentPage, err error) {
	p.Next, err = s.table.list(ctx, f, everywhere, `{millis sent_at}`, func(rows *sql.Rows) error {
		var (
			m    SentMessage
			sent int64
			err  error
		)
		m.Message, err = scanMessage(rows, &sent)
		m.SentAt = fromMillis(sent)
		p.Messages = append(p.Messages, m)
		return err
	})
	if n := len(p.Messages); n == cmp.Or(f.Limit, page) {
		p.Next = p.Messages[n-1].ID
	}
	return p, err
}
