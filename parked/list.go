package parked

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	store "github.com/watermill-once/once/internal/parked"
)

// Page is one page of a list.
type Page struct {
	// Messages are in the order of their IDs. A page can contain fewer messages than
	// Filter.Limit, or none, even if later pages contain messages.
	Messages []Message

	// Next is the value of Filter.AfterID for the next page, or 0 if this is the last page.
	Next int64
}

// List returns a page of the messages that match f, without their contents. It reads at
// most 20,000 rows.
func (m *Messages) List(ctx context.Context, f Filter) (Page, error) {
	p, err := m.list(ctx, f)
	if err != nil {
		return Page{}, fmt.Errorf("parked: list: %w", err)
	}
	return p, nil
}

func (m *Messages) list(ctx context.Context, f Filter) (Page, error) {
	if err := f.validate(); err != nil {
		return Page{}, err
	}
	var p Page
	n := cmp.Or(f.Limit, page)
	err := m.read(ctx, func(tx *sql.Tx) error {
		w, err := m.window(ctx, tx, f)
		if err != nil {
			return err
		}
		p = Page{Next: w.next}
		return m.rows(ctx, tx, w, m.columns, limit(n), func(scan func(dest ...any) error) error {
			message, err := scanMessage(scan)
			p.Messages = append(p.Messages, message)
			return err
		})
	})
	if len(p.Messages) == n {
		p.Next = p.Messages[n-1].ID
	}
	return p, err
}

// Get returns one message with its content, or [ErrNotFound].
func (m *Messages) Get(ctx context.Context, id int64) (Message, error) {
	p, err := m.list(ctx, Filter{IDs: []int64{id}})
	if err == nil && len(p.Messages) == 0 {
		err = about(id, ErrNotFound)
	}
	if err == nil {
		var envelope []byte
		err = m.read(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, m.dialect.SQL(`SELECT envelope FROM {parked} WHERE id = $1`), id).Scan(&envelope)
		})
		if errors.Is(err, sql.ErrNoRows) { // the row was deleted after the first query
			err = about(id, ErrNotFound)
		}
		if err == nil {
			p.Messages[0].Message, p.Messages[0].MessageErr = store.Decode(envelope)
		}
	}
	if err != nil {
		return Message{}, fmt.Errorf("parked: get: %w", err)
	}
	return p.Messages[0], nil
}

// about returns err with the ID of the message.
func about(id int64, err error) error { return fmt.Errorf("message %d: %w", id, err) }

// Count is the number of messages in a part of the table.
type Count struct {
	N int

	// Next is the value of Filter.AfterID for counting the rest of the table, or 0 if the
	// whole table was counted.
	Next int64
}

// Count counts the messages that match f. It reads at most 20,000 rows, and ignores
// Filter.Limit.
func (m *Messages) Count(ctx context.Context, f Filter) (Count, error) {
	var c Count
	err := f.validate()
	if err == nil {
		err = m.read(ctx, func(tx *sql.Tx) error {
			w, err := m.window(ctx, tx, f)
			if err != nil {
				return err
			}
			c.Next = w.next
			return m.rows(ctx, tx, w, `COUNT(*)`, ``, func(scan func(dest ...any) error) error { return scan(&c.N) })
		})
	}
	if err != nil {
		return Count{}, fmt.Errorf("parked: count: %w", err)
	}
	return c, nil
}
