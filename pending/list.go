package pending

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Page is one page of a list.
type Page struct {
	// Messages are in the order of their IDs, which are positions in the outbox. A page can
	// contain fewer messages than Filter.Limit, or none, even if later pages contain
	// messages.
	Messages []Message

	// Next is the value of Filter.AfterID for the next page, or 0 if this is the last page.
	Next int64
}

// List returns a page of the messages that match f, without their payloads. It reads at
// most 20,000 rows.
func (m *Messages) List(ctx context.Context, f Filter) (Page, error) {
	p, err := m.list(ctx, f)
	if err != nil {
		return Page{}, fmt.Errorf("pending: list: %w", err)
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
		paused, err := m.pauses(ctx, tx)
		if err != nil {
			return err
		}
		return m.rows(ctx, tx, w, m.columns, limit(n), func(scan func(dest ...any) error) error {
			message, err := scanMessage(scan)
			message.Paused = slices.ContainsFunc(paused, func(p Pause) bool {
				return p.Includes(message.Topic, message.Metadata[meta.TenantID])
			})
			p.Messages = append(p.Messages, message)
			return err
		})
	})
	if len(p.Messages) == n {
		p.Next = p.Messages[n-1].ID
	}
	return p, err
}

// Get returns one message with its payload, or [ErrNotFound].
func (m *Messages) Get(ctx context.Context, id int64) (Message, error) {
	p, err := m.list(ctx, Filter{IDs: []int64{id}})
	if err == nil && len(p.Messages) == 0 {
		err = notFound(id)
	}
	if err == nil {
		err = m.read(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, m.dialect.SQL(`SELECT payload FROM {outbox} WHERE position = $1`), id).Scan(&p.Messages[0].Payload)
		})
		if errors.Is(err, sql.ErrNoRows) { // the row was deleted after the first query
			err = notFound(id)
		}
	}
	if err != nil {
		return Message{}, fmt.Errorf("pending: get: %w", err)
	}
	if p.Messages[0].Payload == nil {
		p.Messages[0].Payload = []byte{} // not nil, because nil means that the body was not read
	}
	return p.Messages[0], nil
}

func notFound(id int64) error {
	return fmt.Errorf("message %s: %w", strconv.FormatInt(id, 10), ErrNotFound)
}

// Count is the number of messages in a part of the outbox.
type Count struct {
	N int

	// Next is the value of Filter.AfterID for counting the rest of the outbox, or 0 if the
	// whole outbox was counted.
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
		return Count{}, fmt.Errorf("pending: count: %w", err)
	}
	return c, nil
}

// Topic contains the numbers of messages of one topic.
type Topic struct {
	Name string

	// Pending is the number of all messages. The other fields are the numbers of messages
	// in each state.
	Pending, Due, BackingOff, Delayed, Blocked int

	// Oldest is the age of the oldest message.
	Oldest time.Duration

	// Paused reports whether the topic is paused. A pause does not change the other fields:
	// they include the messages that wait because of the pause.
	Paused bool
}

// Backlog contains the topics in a part of the outbox.
type Backlog struct {
	// Topics are in alphabetical order.
	Topics []Topic

	// Next is the value of Filter.AfterID for reading the rest of the outbox, or 0 if the
	// whole outbox was read. If Next is not 0, the rest may contain more messages of these
	// topics, and other topics. The oldest messages are read first.
	Next int64
}

// Backlog counts the messages that match f, for each topic. It reads at most 20,000
// rows, and ignores Filter.Limit.
func (m *Messages) Backlog(ctx context.Context, f Filter) (Backlog, error) {
	b, err := m.backlog(ctx, f)
	if err != nil {
		return Backlog{}, fmt.Errorf("pending: backlog: %w", err)
	}
	return b, nil
}

func (m *Messages) backlog(ctx context.Context, f Filter) (Backlog, error) {
	if err := f.validate(); err != nil {
		return Backlog{}, err
	}
	var b Backlog
	err := m.read(ctx, func(tx *sql.Tx) error {
		w, err := m.window(ctx, tx, f)
		if err != nil {
			return err
		}
		b = Backlog{Next: w.next}
		paused, err := m.pauses(ctx, tx)
		if err != nil {
			return err
		}
		columns := `o.topic, ` + outboxrow.State + ` AS state, COUNT(*), {clock} - {millis MIN(o.created_at)}`
		return m.rows(ctx, tx, w, columns, `GROUP BY o.topic, state ORDER BY o.topic`, func(scan func(dest ...any) error) error {
			var (
				topic string
				state State
				n     int
				age   int64
			)
			if err := scan(&topic, &state, &n, &age); err != nil {
				return err
			}
			b.add(topic, state, n, time.Duration(max(0, age))*time.Millisecond)
			b.Topics[len(b.Topics)-1].Paused = slices.ContainsFunc(paused, func(p Pause) bool { return p.Topic == topic })
			return nil
		})
	})
	return b, err
}

// add adds n messages of a topic. The caller must add the messages in the order of their
// topics.
func (b *Backlog) add(topic string, state State, n int, age time.Duration) {
	if last := len(b.Topics) - 1; last < 0 || b.Topics[last].Name != topic {
		b.Topics = append(b.Topics, Topic{Name: topic})
	}
	t := &b.Topics[len(b.Topics)-1]
	t.Pending += n
	t.Oldest = max(t.Oldest, age)
	switch state {
	case Due:
		t.Due += n
	case BackingOff:
		t.BackingOff += n
	case Delayed:
		t.Delayed += n
	case Blocked:
		t.Blocked += n
	}
}
