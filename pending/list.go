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

// Page is a part of a list.
type Page struct {
	// Messages are in the order of the outbox. There may be fewer than Filter.Limit,
	// and even none, although later pages have some.
	Messages []Message

	// Next is Filter.AfterID of the next page, or 0 if this is the last page.
	Next int64
}

// List returns a page of the messages that match, without their payloads. It looks
// at 20,000 rows at most.
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
		if errors.Is(err, sql.ErrNoRows) { // sent meanwhile
			err = notFound(id)
		}
	}
	if err != nil {
		return Message{}, fmt.Errorf("pending: get: %w", err)
	}
	if p.Messages[0].Payload == nil {
		p.Messages[0].Payload = []byte{} // nil would say that the body was not read
	}
	return p.Messages[0], nil
}

func notFound(id int64) error {
	return fmt.Errorf("message %s: %w", strconv.FormatInt(id, 10), ErrNotFound)
}

// Count is the number of messages in a part of the outbox.
type Count struct {
	N int

	// Next is Filter.AfterID for the rest of the outbox, or 0 if all of it was
	// counted.
	Next int64
}

// Count counts the messages that match. It looks at 20,000 rows at most and ignores
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

// Topic is the messages of one topic.
type Topic struct {
	Name string

	// Pending is the number of messages. The other numbers are those in each state.
	Pending, Due, BackingOff, Delayed, Blocked int

	// Oldest is the age of the message that was written first.
	Oldest time.Duration

	// Paused reports whether the topic is paused. The other fields include its messages.
	Paused bool
}

// Backlog is the topics in a part of the outbox.
type Backlog struct {
	// Topics are in alphabetical order.
	Topics []Topic

	// Next is Filter.AfterID for the rest of the outbox, or 0 if all of it was
	// looked at. If it is not 0, the numbers of a topic can be higher, and more topics
	// can exist. The oldest messages are looked at first.
	Next int64
}

// Backlog returns the messages that match for each topic. It looks at 20,000 rows
// at most and ignores Filter.Limit.
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

// add adds messages of a topic, which come in the order of their topics.
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
