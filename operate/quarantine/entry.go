package quarantine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Entry is a message in quarantine, with the reason for its failure.
type Entry struct {
	// ID identifies the entry. Pass it to Replay, Edit and Discard.
	ID int64

	Consumer, Topic string

	// Message is the message as it was received, byte for byte. If its stored form is damaged,
	// MessageErr is set instead. Both are nil with Config.WithoutContent.
	Message    *message.Message
	MessageErr error

	// MessageID and Tenant are shortened if they are too long, without characters that a text
	// column cannot store. The field Message has the original values.
	MessageID, Tenant string

	// Reason is one of the Reason constants, Error the text of the last failure, and ErrorType its
	// Go type. Failures with the same cause have the same Fingerprint, see Group.
	Reason, Error, ErrorType, Fingerprint string

	// Stack is the stack of the handler's last panic, at most 8,192 bytes, if the last failure was
	// one, and without Config.WithoutContent.
	Stack string

	// Attempts counts the calls of the handler, Replays the replays of the entry, and Crashes the
	// processes that died while they handled the message.
	Attempts, Crashes, Replays int

	// State is "quarantined", or after a replay, an edit or a discard "waiting", "held" (behind the
	// head of its ordering key), "resolved" or "discarded".
	State string

	// DueAt is the time of a waiting entry's next attempt. CreatedAt is the time at which the
	// message was first stored.
	DueAt, CreatedAt time.Time

	// FirstFailedAt and LastFailedAt are zero if the message has never failed, FinishedAt if the
	// entry is neither resolved nor discarded.
	FirstFailedAt, LastFailedAt, FinishedAt time.Time

	// EditedFrom is the ID of the entry that this one replaces, and ReplayID that of the latest
	// Replay with the entry, or 0.
	EditedFrom, ReplayID int64

	BlocksKey bool

	// Envelope is the stored form of Message, and Digest a hash of its id and payload.
	Envelope, Digest []byte

	origin string // origin of an imported entry, see Entry.exportOrigin
	edited bool   // whether the entry replaces another entry, in this database or in the database that exported it
}

// Get returns the entry with this ID, even if it was replayed, edited or discarded. It
// returns [operate.ErrNotFound] if no entry has this ID.
func (q *Entries) Get(ctx context.Context, id int64) (Entry, error) {
	entry, err := q.table.get(ctx, id)
	if err != nil {
		return Entry{}, fmt.Errorf("quarantine: %w", err)
	}
	return entry, nil
}

// List returns a page of the messages in quarantine that match. For a single condition, an index
// finds them. With several, List looks at no more than 10,000 entries that match the rarest one,
// and Page.Next says where the search continues. A consumer and a topic together are one condition,
// as are FailedAfter and FailedBefore, which do not count if at most 5,000 entries failed in this
// period: List then looks at these only.
func (q *Entries) List(ctx context.Context, f operate.Filter) (operate.Page[Entry], error) {
	p, err := q.table.list(ctx, f, func(tx *sql.Tx) (rows.Window, error) { return q.table.Window(ctx, tx, f, false) })
	if err != nil {
		return operate.Page[Entry]{}, fmt.Errorf("quarantine: list: %w", err)
	}
	return p, nil
}

// Replayed returns the messages that were replayed or edited and have not been handled since, in
// the order of their IDs. It looks at no more than 10,000, and Page.Next says where the search
// continues. State shows whether an entry waits for its handler or behind another message of its
// ordering key.
func (q *Entries) Replayed(ctx context.Context, f operate.Filter) (operate.Page[Entry], error) {
	p, err := q.table.list(ctx, f, func(tx *sql.Tx) (rows.Window, error) { return q.table.replayed(ctx, tx, f) })
	if err != nil {
		return operate.Page[Entry]{}, fmt.Errorf("quarantine: replayed: %w", err)
	}
	return p, nil
}

func (t *table) list(ctx context.Context, f operate.Filter, window func(tx *sql.Tx) (rows.Window, error)) (operate.Page[Entry], error) {
	contents := t.Contents("error", "stack", "digest", "envelope")
	return rows.List(ctx, t.DB, t.Table, f, t.entryColumns(), func(tx *sql.Tx) (rows.Window, string, error) {
		w, err := window(tx)
		return w, w.From(contents...), err
	}, func(scan func(dest ...any) error) (Entry, int64, error) {
		entry, err := scanEntry(scan)
		if contents == nil {
			entry.Message, entry.MessageErr, entry.Envelope, entry.Digest = nil, nil, nil, nil
		}
		return entry, entry.ID, err
	})
}

// Count counts the messages in quarantine that match, at most 50,000 in one call, and Filter.Limit
// if it is set. With several conditions, it looks at no more than 10,000 entries that match the
// rarest one. Count.Next says where the next call continues.
func (q *Entries) Count(ctx context.Context, f operate.Filter) (operate.Count, error) {
	n, err := q.table.Count(ctx, f)
	if err != nil {
		return operate.Count{}, fmt.Errorf("quarantine: count: %w", err)
	}
	return n, nil
}

func (t *table) get(ctx context.Context, id int64) (entry Entry, err error) {
	err = t.Look(ctx, func(tx *sql.Tx) error {
		entry, err = t.getIn(ctx, tx, id)
		return err
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Entry{}, fmt.Errorf("message %d: %w", id, operate.ErrNotFound)
	case err != nil:
		return Entry{}, fmt.Errorf("read parked message %d: %w", id, err)
	}
	return entry, nil
}

// Without a row, getIn returns sql.ErrNoRows.
func (t *table) getIn(ctx context.Context, tx *sql.Tx, id int64) (Entry, error) {
	return scanEntry(tx.QueryRowContext(ctx, t.sql.get, id).Scan)
}

func (t *table) entryColumns() string {
	return entryColumns(t.Content(`error`, `''`), t.Content(`stack`, `''`), t.Content(`digest, envelope`, `'', ''`))
}

func entryColumns(text, stack, contents string) string {
	return `id, consumer, topic, message_id, tenant, state, attempts, crashes, replays,
	reason, ` + text + `, error_type, fingerprint, ` + stack + `, {millis due_at}, {millis created_at},
	{millis first_failed_at}, {millis last_failed_at}, {millis finished_at},
	COALESCE(edited_from, 0), COALESCE(replay_id, 0), COALESCE(origin, ''), edited_from IS NOT NULL,
	ordering_key IS NOT NULL AND state IN ('waiting', 'quarantined'), ` + contents
}

func scanEntry(scan func(dest ...any) error) (Entry, error) {
	var (
		e                               Entry
		due, created                    int64
		firstFailed, lastFailed, finish sql.NullInt64
	)
	err := scan(&e.ID, &e.Consumer, &e.Topic, &e.MessageID, &e.Tenant, &e.State, &e.Attempts, &e.Crashes, &e.Replays,
		&e.Reason, &e.Error, &e.ErrorType, &e.Fingerprint, &e.Stack, &due, &created, &firstFailed, &lastFailed, &finish,
		&e.EditedFrom, &e.ReplayID, &e.origin, &e.edited, &e.BlocksKey, &e.Digest, &e.Envelope)
	if err != nil {
		return Entry{}, err
	}
	e.DueAt, e.CreatedAt = rows.Millis(due), rows.Millis(created)
	e.FirstFailedAt, e.LastFailedAt, e.FinishedAt = rows.Time(firstFailed), rows.Time(lastFailed), rows.Time(finish)
	e.Message, e.MessageErr = parkedrows.Decode(e.Envelope)
	return e, nil
}
