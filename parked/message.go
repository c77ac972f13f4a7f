package parked

import (
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	store "github.com/watermill-once/once/internal/parked"
)

// State is what a parked message waits for, or how it ended.
type State string

// The states of a message.
const (
	// Waiting: the consumer handles the message at DueAt, or has claimed it.
	Waiting State = store.Waiting

	// Held: the message waits for another message of its ordering key, BlockedBy.
	Held State = store.Held

	// Quarantined: the consumer has given up on the message, or it was cancelled.
	// Package poison replays, edits and discards it.
	Quarantined State = store.Quarantined

	// Resolved: the message was handled. The row is kept because the message was
	// replayed, or because a durable consumer keeps its messages.
	Resolved State = store.Resolved

	// Discarded: somebody ended the message without handling it.
	Discarded State = store.Discarded
)

// Message is a message in the consumer's database.
type Message struct {
	// ID is the argument of Get, RunNow, Cancel and Discard.
	ID int64

	// Consumer and Topic are those of the subscription.
	Consumer, Topic string

	// MessageID, Tenant and OrderingKey are those of the message. They are bounded, and
	// characters that a text column cannot store are replaced. OrderingKey is empty if
	// the consumer keeps no order.
	MessageID, Tenant, OrderingKey string

	// Message is the message as it came, byte for byte; nil, with MessageErr set, if the
	// stored form is damaged. Get fills both in, List does not. Size is the length of
	// the stored form in bytes, after both.
	Message    *message.Message
	MessageErr error
	Size       int

	State State

	// DueAt is when a waiting message is due; of a claimed message, when its lease ends.
	DueAt time.Time

	// Claimed reports whether a subscription has claimed the message and its lease has
	// not ended. ClaimedBy is that subscription: host, process and a random part. It is
	// also set if the lease has ended without a result: the process died or is frozen.
	Claimed   bool
	ClaimedBy string

	// Attempts is the number of calls of the handler. Crashes is the number of processes
	// that ended while they ran the message; a claim counts as one until it ends.
	// Replays is the number of replays from the quarantine.
	Attempts, Crashes, Replays int

	// Early reports whether the message waits for a missing version of its aggregate,
	// see package sequence.
	Early bool

	// BlockedBy is, of a Held message, the ID of the message that it waits for.
	BlockedBy int64

	// Reason is why the message is in quarantine, or was at last. Error is the text of
	// the last failure, and ErrorType the Go type of that error.
	Reason, Error, ErrorType string

	// CreatedAt is the time at which the message was stored. FirstFailedAt and
	// LastFailedAt are zero if it never failed, FinishedAt is zero unless it is resolved
	// or discarded.
	CreatedAt, FirstFailedAt, LastFailedAt, FinishedAt time.Time
}

// live is an SQL condition: a subscription has claimed row p, and its lease lasts.
const live = `(p.state = 'waiting' AND p.token IS NOT NULL AND p.due_at > {now})`

// messageColumns are the columns of a message, for scanMessage.
const messageColumns = `p.id, p.consumer, p.topic, p.message_id, p.tenant, COALESCE(p.ordering_key, ''), length(p.envelope), p.state,
	{millis p.due_at}, ` + live + `, COALESCE(p.owner, ''), p.attempts, p.crashes, p.replays,
	p.early_since IS NOT NULL AND p.state = 'waiting',
	COALESCE((SELECT h.id FROM {parked} AS h WHERE p.state = 'held' AND h.consumer = p.consumer AND h.topic = p.topic
	          AND h.ordering_key = p.ordering_key AND h.ordering_key IS NOT NULL AND h.state IN ('waiting', 'quarantined')), 0),
	p.reason, p.error, p.error_type,
	{millis p.created_at}, {millis p.first_failed_at}, {millis p.last_failed_at}, {millis p.finished_at}`

func scanMessage(scan func(dest ...any) error) (Message, error) {
	var (
		m                             Message
		due, created                  int64
		firstFailed, failed, finished sql.NullInt64
	)
	err := scan(&m.ID, &m.Consumer, &m.Topic, &m.MessageID, &m.Tenant, &m.OrderingKey, &m.Size, &m.State,
		&due, &m.Claimed, &m.ClaimedBy, &m.Attempts, &m.Crashes, &m.Replays, &m.Early, &m.BlockedBy,
		&m.Reason, &m.Error, &m.ErrorType, &created, &firstFailed, &failed, &finished)
	m.DueAt, m.CreatedAt = time.UnixMilli(due).UTC(), time.UnixMilli(created).UTC()
	m.FirstFailedAt, m.LastFailedAt, m.FinishedAt = timeOf(firstFailed), timeOf(failed), timeOf(finished)
	return m, err
}

// timeOf is zero for NULL.
func timeOf(millis sql.NullInt64) time.Time {
	if !millis.Valid {
		return time.Time{}
	}
	return time.UnixMilli(millis.Int64).UTC()
}
