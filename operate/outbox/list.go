package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// States of a message.
const (
	// Due: a forwarder sends the message as soon as it can, or is sending it.
	Due = "due"

	// BackingOff: the broker refused it, or confirmed none of its topic. It is due at DueAt.
	BackingOff = "backing_off"

	// Delayed: the producer delayed the message until DueAt.
	Delayed = "delayed"

	// Blocked: the message waits for another message of its ordering key, BlockedBy.
	Blocked = "blocked"
)

// Message is a message that waits to be forwarded.
type Message struct {
	// ID is the position in the outbox. Pass it to Get, Retry and Cancel.
	ID int64

	MessageID, Topic, OrderingKey string

	// Payload is the body, byte for byte, which only Get sets. Size is its length in bytes.
	Payload []byte
	Size    int

	// Metadata is nil if package outbox did not write it, or with Config.WithoutContent.
	Metadata message.Metadata

	CreatedAt time.Time

	// State says why the message is still in the outbox. It is one of the constants.
	State string

	// Paused reports whether the message waits because its topic or, without Config.WithoutContent,
	// its tenant is paused, see [Messages.Pause]. It is false for a message that waits behind a
	// paused one of its ordering key.
	Paused bool

	// DueAt is zero if the message has been due since CreatedAt.
	DueAt time.Time

	// Attempts counts the refusals by the broker. LastError is the latest error of the publisher,
	// and FailingSince the time of the first.
	Attempts     int
	LastError    string
	FailingSince time.Time

	// Unknown reports whether an earlier attempt may have sent the message.
	Unknown bool

	// BlockedBy is the ID of the message that blocks the key of a Blocked message. If that is a
	// dead letter, BlockedBy is its position, and BlockedByLetter its ID. In other states both are
	// 0.
	BlockedBy, BlockedByLetter int64
}

func (m *Messages) columns() string {
	return `o.position, o.message_id, o.topic, COALESCE(o.ordering_key, ''), ` + m.db.Content(`octet_length(o.payload)`, `0`) + `,
	` + m.db.Content(`CAST(o.metadata AS text)`, `''`) + `, {millis o.created_at}, ` + outboxrow.State + `, {millis o.due_at}, o.attempts,
	` + m.db.Content(`COALESCE(o.last_error, '')`, `''`) + `, {millis o.failing_since}, o.unknown,
	COALESCE((SELECT h.position FROM {blocked_keys} AS h WHERE h.ordering_key = o.ordering_key AND h.position <> o.position), 0),
	COALESCE((SELECT ` + outboxrow.Letter + ` FROM {blocked_keys} AS b WHERE b.ordering_key = o.ordering_key AND b.position <> o.position), 0)`
}

func scanMessage(scan func(dest ...any) error) (Message, error) {
	var (
		m            Message
		metadata     []byte
		created      int64
		due, failing sql.NullInt64
	)
	err := scan(&m.ID, &m.MessageID, &m.Topic, &m.OrderingKey, &m.Size, &metadata, &created, &m.State, &due, &m.Attempts, &m.LastError,
		&failing, &m.Unknown, &m.BlockedBy, &m.BlockedByLetter)
	if err != nil {
		return Message{}, err
	}
	if m.Metadata, err = outboxrow.DecodeMetadata(metadata); err != nil {
		m.Metadata = nil // a damaged row is still shown
	}
	m.CreatedAt, m.DueAt, m.FailingSince = rows.Millis(created), rows.Time(due), rows.Time(failing)
	return m, nil
}

// List returns a page of messages without their payloads. It reads at most 20,000 rows.
func (m *Messages) List(ctx context.Context, f operate.Filter) (operate.Page[Message], error) {
	p, err := m.list(ctx, f)
	if err != nil {
		return operate.Page[Message]{}, fmt.Errorf("outbox: list: %w", err)
	}
	return p, nil
}

func (m *Messages) list(ctx context.Context, f operate.Filter) (operate.Page[Message], error) {
	var paused []Pause
	return rows.List(ctx, m.db, m.table.Table, f, m.columns(), func(tx *sql.Tx) (w rows.Window, from string, err error) {
		if w, err = m.table.Window(ctx, tx, f); err == nil {
			paused, err = m.pauses(ctx, tx)
		}
		return w, w.From(), err
	}, func(scan func(dest ...any) error) (Message, int64, error) {
		message, err := scanMessage(scan)
		message.Paused = slices.ContainsFunc(paused, func(p Pause) bool {
			return p.includes(message.Topic, message.Metadata[meta.TenantID])
		})
		return message, message.ID, err
	})
}

// Get returns one message with its payload, or [operate.ErrNotFound].
func (m *Messages) Get(ctx context.Context, id int64) (Message, error) {
	p, err := m.list(ctx, operate.Filter{IDs: []int64{id}})
	if err == nil && len(p.Rows) == 0 {
		err = notFound(id)
	}
	payload := []byte{} // not nil, because nil means that the body was not read
	if err == nil {
		err = m.db.Look(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, m.db.SQL(`SELECT payload FROM {outbox} WHERE position = $1`), id).Scan(&payload)
		})
		if errors.Is(err, sql.ErrNoRows) { // the row was deleted after the first query
			err = notFound(id)
		}
	}
	if err != nil {
		return Message{}, fmt.Errorf("outbox: get: %w", err)
	}
	p.Rows[0].Payload = append([]byte{}, payload...)
	return p.Rows[0], nil
}

func notFound(id int64) error {
	return fmt.Errorf("message %s: %w", strconv.FormatInt(id, 10), operate.ErrNotFound)
}

// Count counts the messages that match f. It reads at most 20,000 rows, and ignores Filter.Limit.
func (m *Messages) Count(ctx context.Context, f operate.Filter) (operate.Count, error) {
	n, err := m.table.Count(ctx, f)
	if err != nil {
		return operate.Count{}, fmt.Errorf("outbox: count: %w", err)
	}
	return n, nil
}

// Topic contains the message counts of one topic.
type Topic struct {
	Name string

	// Pending counts all messages, the other fields those in each state.
	Pending, Due, BackingOff, Delayed, Blocked int

	Oldest time.Duration

	// Paused reports whether the topic is paused. The other fields include its messages.
	Paused bool
}

// Backlog contains the topics in a part of the outbox.
type Backlog struct {
	// Topics are in alphabetical order.
	Topics []Topic

	// Next is the Filter.AfterID for the rest of the outbox, or 0. The rest may contain more
	// messages of these topics, and other topics. The oldest messages are read first.
	Next int64
}

// Backlog counts the messages that match f, for each topic. It reads at most 20,000
// rows, and ignores Filter.Limit.
func (m *Messages) Backlog(ctx context.Context, f operate.Filter) (Backlog, error) {
	b, err := m.backlog(ctx, f)
	if err != nil {
		return Backlog{}, fmt.Errorf("outbox: backlog: %w", err)
	}
	return b, nil
}

func (m *Messages) backlog(ctx context.Context, f operate.Filter) (Backlog, error) {
	if err := m.table.Check(f); err != nil {
		return Backlog{}, err
	}
	var b Backlog
	err := m.db.Look(ctx, func(tx *sql.Tx) error {
		w, err := m.table.Window(ctx, tx, f)
		if err != nil {
			return err
		}
		b = Backlog{Next: w.Next}
		paused, err := m.pauses(ctx, tx)
		if err != nil {
			return err
		}
		columns := `o.topic, ` + outboxrow.State + ` AS state, COUNT(*), {clock} - {millis MIN(o.created_at)}`
		return m.table.Each(ctx, tx, w, columns, `GROUP BY o.topic, state ORDER BY o.topic`, func(scan func(dest ...any) error) error {
			var (
				topic string
				state string
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

// add must be called in the order of the topics.
func (b *Backlog) add(topic string, state string, n int, age time.Duration) {
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
