package mover

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/outbox"
)

// maxBytes limits the payloads of a batch. A single message may exceed it.
const maxBytes = 16 << 20

type place struct {
	transaction string // a value of PostgreSQL's type xid8
	offset      int64
}

type row struct {
	place

	id       string
	payload  []byte
	metadata sql.NullString
}

func (m *Mover) waiting(ctx context.Context) (waiting bool, err error) {
	err = m.read(ctx, func(tx *sql.Tx) error {
		at, _, err := m.position(ctx, tx, m.sql.position)
		if err != nil {
			return err
		}
		var one int
		err = tx.QueryRowContext(ctx, m.sql.waiting, at.transaction, at.offset).Scan(&one)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		waiting = err == nil
		return err
	})
	return waiting, err
}

func (m *Mover) moveBatch(ctx context.Context) (moved int, err error) {
	var dead []deadLetter
	err = m.write(ctx, func(tx *sql.Tx) error {
		at, err := m.lock(ctx, tx)
		if err != nil {
			return err
		}
		failpoint.Hit("mover/locked")
		// A separate statement, so that its snapshot is taken after the lock.
		rows, err := m.next(ctx, tx, at)
		if err != nil || len(rows) == 0 {
			return err
		}
		if dead, err = m.insert(ctx, tx, rows); err != nil {
			return err
		}
		failpoint.Hit("mover/inserted")
		moved = len(rows)
		last := rows[moved-1]
		advanced, err := dialect.Affected(tx.ExecContext(ctx, m.sql.advance, last.transaction, last.offset, m.config.ConsumerGroup))
		failpoint.Hit("mover/advanced")
		if err == nil && advanced == 0 { // this transaction has locked the row; the same messages would be moved again
			err = dialect.Ignored(m.config.OffsetsTable, fmt.Sprintf("the offset of consumer group %q was not updated", m.config.ConsumerGroup))
		}
		return err
	})
	failpoint.Hit("mover/moved")
	if err != nil {
		return 0, err
	}
	for _, d := range dead {
		m.config.Logger.Error("Message of the stock outbox becomes a dead letter", errors.New(d.text), watermill.LogFields{
			"message_uuid": d.id, "topic": d.topic, "reason": d.reason, "size": len(d.payload),
		})
	}
	return moved, nil
}

// lock creates the offsets row of the consumer group if it is missing.
func (m *Mover) lock(ctx context.Context, tx *sql.Tx) (place, error) {
	at, found, err := m.position(ctx, tx, m.sql.lock)
	if err != nil || found {
		return at, err
	}
	if _, err := tx.ExecContext(ctx, m.sql.createGroup, m.config.ConsumerGroup); err != nil {
		return place{}, err
	}
	failpoint.Hit("mover/group-created")
	// Another mover may have created the row first, and moved rows already.
	at, found, err = m.position(ctx, tx, m.sql.lock)
	if err == nil && !found {
		err = fmt.Errorf("the offset of consumer group %q was removed by another process", m.config.ConsumerGroup)
	}
	return at, err
}

func (m *Mover) position(ctx context.Context, tx *sql.Tx, query string) (at place, found bool, err error) {
	err = tx.QueryRowContext(ctx, query, m.config.ConsumerGroup).Scan(&at.offset, &at.transaction)
	if !errors.Is(err, sql.ErrNoRows) {
		return at, err == nil, err
	}
	others, err := m.groups(ctx, tx)
	if err == nil && len(others) > 0 {
		err = fmt.Errorf("%w: ConsumerGroup is %q, the table has %q", ErrUnknownGroup, m.config.ConsumerGroup, others)
	}
	return place{transaction: "0"}, false, err
}

func (m *Mover) groups(ctx context.Context, tx *sql.Tx) ([]string, error) {
	found, err := tx.QueryContext(ctx, m.sql.groups)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var groups []string
	for found.Next() {
		var group string
		if err := found.Scan(&group); err != nil {
			return nil, err
		}
		groups = append(groups, group)
	}
	return groups, found.Err()
}

func (m *Mover) next(ctx context.Context, tx *sql.Tx, at place) ([]row, error) {
	found, err := tx.QueryContext(ctx, m.sql.next, at.transaction, at.offset, m.config.BatchSize, maxBytes)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var rows []row
	for found.Next() {
		var r row
		if err := found.Scan(&r.offset, &r.transaction, &r.id, &r.payload, &r.metadata); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, found.Err()
}

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
	// Publish has stored none of the messages, and tx is unchanged. One by one, only the refused
	// messages become dead letters.
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
