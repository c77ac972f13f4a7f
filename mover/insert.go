package mover

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/outbox"
)

// insert stores the messages of the given rows in the outbox, in the same order. It
// returns dead letters for the rows that cannot be moved.
func (m *Mover) insert(ctx context.Context, tx *sql.Tx, rows []row) ([]deadLetter, error) {
	events := m.outbox.Publisher(tx)
	var (
		dead []deadLetter
		run  []unwrapped // consecutive messages of one topic
	)
	flush := func() error {
		refused, err := m.publish(events, run)
		dead = append(dead, refused...)
		run = run[:0]
		return err
	}
	for _, r := range rows {
		u := unwrap(r)
		if u.msg == nil {
			dead = append(dead, m.asStored(r, reasonMalformed, u.err))
			continue
		}
		if len(run) > 0 && run[0].topic != u.topic {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		run = append(run, u)
	}
	if err := flush(); err != nil {
		return nil, err
	}
	for _, d := range dead {
		failpoint.Hit("mover/dead-letter")
		if err := m.insertDeadLetter(ctx, tx, d); err != nil {
			return nil, err
		}
	}
	return dead, nil
}

// publish stores messages that have the same topic. It returns dead letters for the
// messages that the outbox refuses.
func (m *Mover) publish(events message.Publisher, run []unwrapped) ([]deadLetter, error) {
	msgs := make([]*message.Message, len(run))
	for i, u := range run {
		msgs[i] = u.msg
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	err := events.Publish(run[0].topic, msgs...)
	if err == nil || !errors.Is(err, outbox.ErrInvalid) {
		return nil, err
	}
	// Publish has stored none of the messages, and tx is unchanged. Publish the messages
	// one by one, so that only the refused messages become dead letters.
	var refused []deadLetter
	for _, u := range run {
		err := events.Publish(u.topic, u.msg)
		switch {
		case errors.Is(err, outbox.ErrInvalid):
			refused = append(refused, m.refused(u, err))
		case err != nil:
			return nil, err
		}
	}
	return refused, nil
}
