package forwarder

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/watermill-once/once/schema"
)

// SentMessage is a message that was confirmed.
type SentMessage struct {
	Stored

	// SentAt is when that was recorded.
	SentAt time.Time
}

// Sent is the log of what was sent, which is written if Config.KeepSent is set.
type Sent struct {
	archive archive
}

// NewSent returns the sent log in db, or an error that names the field of
// config that cannot be used. The tables must be there, see schema.Up.
func NewSent(db *sql.DB, config schema.Config) (*Sent, error) {
	a, err := newArchive(db, config, archive{table: `{outbox_sent}`, subject: "sent", at: "sent_at"})
	if err != nil {
		return nil, err
	}
	return &Sent{a}, nil
}

// List returns the messages that match, in order of their ID and without their
// payloads.
func (s *Sent) List(ctx context.Context, f Filter) ([]SentMessage, error) {
	messages, err := s.list(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("forwarder: sent: %w", err)
	}
	return messages, nil
}

// Get returns one message with its payload, or [ErrNotFound].
func (s *Sent) Get(ctx context.Context, id int64) (SentMessage, error) {
	messages, err := s.list(ctx, Filter{IDs: []int64{id}})
	if err == nil && len(messages) == 0 {
		err = fmt.Errorf("%w: %d", ErrNotFound, id)
	}
	if err == nil {
		err = s.archive.payload(ctx, &messages[0].Stored)
	}
	if err != nil {
		return SentMessage{}, fmt.Errorf("forwarder: sent: %w", err)
	}
	return messages[0], nil
}

// Count returns how many messages match, whatever the Filter's Limit.
func (s *Sent) Count(ctx context.Context, f Filter) (int, error) {
	n, _, err := s.archive.matching(ctx, f)
	if err != nil {
		return 0, fmt.Errorf("forwarder: sent: %w", err)
	}
	return n, nil
}

func (s *Sent) list(ctx context.Context, f Filter) ([]SentMessage, error) {
	var messages []SentMessage
	err := s.archive.list(ctx, f, `{millis sent_at}`, func(rows *sql.Rows) error {
		var (
			m    SentMessage
			sent int64
			err  error
		)
		m.Stored, err = scanStored(rows, &sent)
		m.SentAt = time.UnixMilli(sent).UTC()
		messages = append(messages, m)
		return err
	})
	return messages, err
}

// DryRun returns what Resend would do, and changes nothing.
func (s *Sent) DryRun(ctx context.Context, f Filter, plan Plan) (Report, error) {
	report, err := s.archive.run(ctx, f, s.resend(plan).dry())
	if err != nil {
		return report, fmt.Errorf("forwarder: dry run: %w", err)
	}
	return report, nil
}

// Resend puts copies of messages into the outbox, in order of their IDs and
// under the ids that they had: a consumer that has handled one, and remembers
// that, does nothing. They go out behind what is in the outbox, also behind
// later messages of their keys.
//
// What is sent while this runs is left alone. When ctx ends it stops after a
// batch; the report says what was done, with any error. Of a commit whose outcome
// is unknown it knows nothing: to repeat that may send a batch twice.
func (s *Sent) Resend(ctx context.Context, act Act, f Filter, plan Plan) (Report, error) {
	report, err := s.archive.run(ctx, f, s.resend(plan).by(act))
	if err != nil {
		return report, fmt.Errorf("forwarder: resend: %w", err)
	}
	return report, nil
}

func (s *Sent) resend(plan Plan) operation {
	return operation{
		Plan: plan.withDefaults(), name: "resend", unsure: "1 = 1", unfit: "1 = 0",
		do: func(ctx context.Context, tx *sql.Tx, messages []entry) error {
			_, err := s.archive.copyBack(ctx, tx, "1 = 1", messages)
			return err
		},
	}
}
