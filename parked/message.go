package parked

import (
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	store "github.com/watermill-once/once/internal/parked"
)

// State says why a parked message waits, or how it ended.
type State string

// States of a message.
const (
	// Waiting: the consumer handles the message at DueAt, or has claimed it.
	Waiting State = store.Waiting

	// Held: the message waits for another message of its ordering key, BlockedBy.
	Held State = store.Held

	// Quarantined: the consumer has given up on the message, or it was cancelled.
	// Package poison replays, edits and discards it.
	Quarantined State = store.Quarantined

	// Resolved: the message was handled. The row remains because the message was
	// replayed, or because a durable consumer keeps its messages.
	Resolved State = store.Resolved

	// Discarded: an operator ended the message without handling it.
	Discarded State = store.Discarded
)

// Message is a message in the consumer's database.
type Message struct {
	// ID identifies the message. Pass it to Get, RunNow, Cancel and Discard.
	ID int64

	// Consumer and Topic are the consumer and the topic of the subscription.
	Consumer, Topic string

	// MessageID, Tenant and OrderingKey are copied from the message. If they are too long,
	// they are shortened. Characters that a text column cannot store are replaced.
	// OrderingKey is "" if the consumer keeps no order.
	MessageID, Tenant, OrderingKey string

	// Message is the message as it was received, byte for byte. If its stored form is
	// damaged, Message is nil and MessageErr is set. Only Get sets these two fields. Size
	// is the length of the stored form in bytes. Get and List set it.
	Message    *message.Message
	MessageErr error
	Size       int

	State State

	// DueAt is the due time of a waiting message. For a claimed message, it is the time
	// at which the lease ends.
	DueAt time.Time

	// Claimed reports whether a subscription has claimed the message, and the lease of this
	// claim has not ended. ClaimedBy names this subscription by host, process and a random
	// part. If the lease has ended without a result, because the process died or is frozen,
	// ClaimedBy stays set.
	Claimed   bool
	ClaimedBy string

	// Attempts is the number of calls of the handler. Crashes is the number of processes
	// that died while they handled the message. A claim counts as a crash until its outcome
	// is recorded. Replays is the number of replays from the quarantine.
	Attempts, Crashes, Replays int

	// Early reports whether the message waits for a missing version of its aggregate,
	// see package sequence.
	Early bool

	// BlockedBy is the ID of the message for which a Held message waits. In other states it
	// is 0.
	BlockedBy int64

	// Reason is the latest reason why the message is or was in quarantine. Error is the
	// text of the last failure, and ErrorType is the Go type of that error.
	Reason, Error, ErrorType string

	// CreatedAt is the time at which the message was stored. FirstFailedAt and LastFailedAt
	// are zero if the message has never failed. FinishedAt is zero if the message is
	// neither resolved nor discarded.
	CreatedAt, FirstFailedAt, LastFailedAt, FinishedAt time.Time
}

// live is an SQL condition. It is true if a subscription has claimed row p and its
// lease has not ended.
const live = `(p.state = 'waiting' AND p.token IS NOT NULL AND p.due_at > {now})`

// messageColumns are the columns of a message that scanMessage reads.
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

// timeOf converts milliseconds to a time. It returns the zero time for NULL.
func timeOf(millis sql.NullInt64) time.Time {
	if !millis.Valid {
		return time.Time{}
	}
	return time.UnixMilli(millis.Int64).UTC()
}
