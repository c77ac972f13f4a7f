package mover

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/failpoint"
)

// maxBytes limits the size of the payloads of a batch, in bytes. A single message may
// exceed it.
const maxBytes = 16 << 20

// place is a position in the table of Watermill's own forwarder: the position of a row,
// or the position up to which a consumer group has acked the rows.
type place struct {
	transaction string // a value of PostgreSQL's type xid8
	offset      int64
}

// row is a row of the table of Watermill's own forwarder.
type row struct {
	place

	id       string
	payload  []byte
	metadata sql.NullString
}

// waiting reports whether there are rows to move. It takes no lock, and uses no
// transaction id.
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

// moveBatch moves one batch in one transaction, and returns the number of moved rows.
func (m *Mover) moveBatch(ctx context.Context) (moved int, err error) {
	var dead []deadLetter
	err = m.write(ctx, func(tx *sql.Tx) error {
		at, err := m.lock(ctx, tx)
		if err != nil {
			return err
		}
		failpoint.Hit("mover/locked")
		// This is a separate statement, so that its snapshot is taken after the lock.
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
		_, err = tx.ExecContext(ctx, m.sql.advance, last.transaction, last.offset, m.config.ConsumerGroup)
		failpoint.Hit("mover/advanced")
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

// lock locks the offsets row of the consumer group, and returns the position that the
// row contains. It creates the row if it is missing.
func (m *Mover) lock(ctx context.Context, tx *sql.Tx) (place, error) {
	at, found, err := m.position(ctx, tx, m.sql.lock)
	if err != nil || found {
		return at, err
	}
	if _, err := tx.ExecContext(ctx, m.sql.createGroup, m.config.ConsumerGroup); err != nil {
		return place{}, err
	}
	failpoint.Hit("mover/group-created")
	// Another mover may have created the row first, and may have moved rows already.
	at, found, err = m.position(ctx, tx, m.sql.lock)
	if err == nil && !found {
		err = fmt.Errorf("the offset of consumer group %q was removed by another process", m.config.ConsumerGroup)
	}
	return at, err
}

// position returns the position of the consumer group. If the group has no offset, it
// returns the beginning of the table, and the result found is false.
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

// groups returns up to ten of the consumer groups that have an offset.
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

// next reads the rows of the next batch.
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
