package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	store "github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// States of a message: why it waits, or how it ended.
const (
	// Waiting: the consumer handles the message at DueAt, or has claimed it.
	Waiting = store.Waiting

	// Held: the message waits for another message of its ordering key, BlockedBy.
	Held = store.Held

	// Quarantined: the consumer has given up on the message, or it was cancelled.
	// Package quarantine replays, edits and discards it.
	Quarantined = store.Quarantined

	// Resolved: the message was handled. The row remains because the message was
	// replayed, or because a durable consumer keeps its messages.
	Resolved = store.Resolved

	// Discarded: an operator ended the message without handling it.
	Discarded = store.Discarded
)

// Message is a message in the consumer's database.
type Message struct {
	// ID is what Get, RunNow, Cancel and Discard take.
	ID int64

	Consumer, Topic string

	// MessageID, Tenant and OrderingKey are copied from the message, shortened if they are too
	// long, without characters that a text column cannot store. OrderingKey is "" if the consumer
	// keeps no order.
	MessageID, Tenant, OrderingKey string

	// Message is the message as it was received, byte for byte. If its stored form is damaged,
	// MessageErr is set instead. Only Get sets these two. Size is the length of the stored form in
	// bytes.
	Message    *message.Message
	MessageErr error
	Size       int

	State string

	// DueAt is the due time of a waiting message. For a claimed message, it is the time
	// at which the lease ends.
	DueAt time.Time

	// Claimed reports whether the lease of a claim has not ended. ClaimedBy names the subscription
	// by host, process and a random part, and stays set if the lease has ended without a result.
	Claimed   bool
	ClaimedBy string

	// Attempts counts the calls of the handler, Replays the replays from the quarantine, and
	// Crashes the processes that died while they handled the message. A claim counts as a crash
	// until its outcome is recorded.
	Attempts, Crashes, Replays int

	// Early reports whether the message waits for a missing version of its aggregate,
	// see package sequence.
	Early bool

	// BlockedBy is the ID of the message for which a Held message waits, or 0.
	BlockedBy int64

	// Reason is the latest reason of a quarantine, Error the text of the last failure, and
	// ErrorType its Go type.
	Reason, Error, ErrorType string

	// CreatedAt is the time at which the message was stored. The other times are zero if it has
	// never failed, or is neither resolved nor discarded.
	CreatedAt, FirstFailedAt, LastFailedAt, FinishedAt time.Time
}

// live is the SQL condition of rows p with a claim whose lease has not ended.
const live = `(p.state = 'waiting' AND p.token IS NOT NULL AND p.due_at > {now})`

func (m *Messages) columns() string {
	return `p.id, p.consumer, p.topic, p.message_id, p.tenant, COALESCE(p.ordering_key, ''),
	` + m.db.Content(`length(p.envelope)`, `0`) + `, p.state,
	{millis p.due_at}, ` + live + `, COALESCE(p.owner, ''), p.attempts, p.crashes, p.replays,
	p.early_since IS NOT NULL AND p.state = 'waiting',
	COALESCE((SELECT h.id FROM {parked} AS h WHERE p.state = 'held' AND h.consumer = p.consumer AND h.topic = p.topic
	          AND h.ordering_key = p.ordering_key AND h.ordering_key IS NOT NULL AND h.state IN ('waiting', 'quarantined')), 0),
	p.reason, ` + m.db.Content(`p.error`, `''`) + `, p.error_type,
	{millis p.created_at}, {millis p.first_failed_at}, {millis p.last_failed_at}, {millis p.finished_at}`
}

func scanMessage(scan func(dest ...any) error) (Message, error) {
	var (
		m                             Message
		due, created                  int64
		firstFailed, failed, finished sql.NullInt64
	)
	err := scan(&m.ID, &m.Consumer, &m.Topic, &m.MessageID, &m.Tenant, &m.OrderingKey, &m.Size, &m.State,
		&due, &m.Claimed, &m.ClaimedBy, &m.Attempts, &m.Crashes, &m.Replays, &m.Early, &m.BlockedBy,
		&m.Reason, &m.Error, &m.ErrorType, &created, &firstFailed, &failed, &finished)
	m.DueAt, m.CreatedAt = rows.Millis(due), rows.Millis(created)
	m.FirstFailedAt, m.LastFailedAt, m.FinishedAt = rows.Time(firstFailed), rows.Time(failed), rows.Time(finished)
	return m, err
}

// List returns a page of the messages that match f, without their contents. It reads at
// most 20,000 rows.
func (m *Messages) List(ctx context.Context, f operate.Filter) (operate.Page[Message], error) {
	p, err := m.list(ctx, f)
	if err != nil {
		return operate.Page[Message]{}, fmt.Errorf("parked: list: %w", err)
	}
	return p, nil
}

func (m *Messages) list(ctx context.Context, f operate.Filter) (operate.Page[Message], error) {
	return rows.List(ctx, m.db, m.table.Table, f, m.columns(), func(tx *sql.Tx) (rows.Window, string, error) {
		w, err := m.table.Window(ctx, tx, f)
		return w, w.From(), err
	}, func(scan func(dest ...any) error) (Message, int64, error) {
		message, err := scanMessage(scan)
		return message, message.ID, err
	})
}

// Get returns one message with its content, or [operate.ErrNotFound].
func (m *Messages) Get(ctx context.Context, id int64) (Message, error) {
	p, err := m.list(ctx, operate.Filter{IDs: []int64{id}})
	if err == nil && len(p.Rows) == 0 {
		err = about(id, operate.ErrNotFound)
	}
	if err == nil {
		var envelope []byte
		err = m.db.Look(ctx, func(tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, m.db.SQL(`SELECT envelope FROM {parked} WHERE id = $1`), id).Scan(&envelope)
		})
		if errors.Is(err, sql.ErrNoRows) { // the row was deleted after the first query
			err = about(id, operate.ErrNotFound)
		}
		if err == nil {
			p.Rows[0].Message, p.Rows[0].MessageErr = store.Decode(envelope)
		}
	}
	if err != nil {
		return Message{}, fmt.Errorf("parked: get: %w", err)
	}
	return p.Rows[0], nil
}

func about(id int64, err error) error { return fmt.Errorf("message %d: %w", id, err) }

// Count counts the messages that match f. It reads at most 20,000 rows, and ignores
// Filter.Limit.
func (m *Messages) Count(ctx context.Context, f operate.Filter) (operate.Count, error) {
	n, err := m.table.Count(ctx, f)
	if err != nil {
		return operate.Count{}, fmt.Errorf("parked: count: %w", err)
	}
	return n, nil
}
