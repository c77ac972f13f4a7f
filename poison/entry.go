package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/parked"
)

// Entry is a message in quarantine, with the reason for its failure.
type Entry struct {
	// ID identifies the entry. Pass it to Replay, Edit and Discard.
	ID int64

	// Consumer is the name of the consumer that failed. Topic is the topic of its
	// subscription.
	Consumer, Topic string

	// Message is the message as it was received, byte for byte. If the stored Envelope is
	// damaged, Message is nil and MessageErr is set. Both are nil with
	// Config.WithoutContent.
	Message    *message.Message
	MessageErr error

	// MessageID is the id of the message. Tenant is the tenant to which the message
	// belongs. If they are too long, they are shortened. Characters that a text column
	// cannot store are replaced. The field Message contains the original values.
	MessageID, Tenant string

	// Reason is one of the Reason constants. Error is the text of the last failure, and
	// ErrorType is the Go type of that error. Failures with the same cause have the same
	// Fingerprint, see Group.
	Reason, Error, ErrorType, Fingerprint string

	// Stack is the stack of the handler's last panic, at most 8,192 bytes. It is "" if the
	// last failure was not a panic, and with Config.WithoutContent.
	Stack string

	// Attempts is the number of calls of the handler. Crashes is the number of processes
	// that died while they handled the message. Replays is the number of replays of the
	// entry.
	Attempts, Crashes, Replays int

	// State is "quarantined" for an entry in quarantine. After a replay, an edit or a
	// discard, it is "waiting", "held" (it waits behind the head of its ordering key),
	// "resolved" or "discarded".
	State string

	// DueAt is the time of the next attempt of a waiting entry. CreatedAt is the
	// time at which the message was first stored.
	DueAt, CreatedAt time.Time

	// FirstFailedAt and LastFailedAt are zero if the message has never failed. FinishedAt
	// is zero if the entry is neither resolved nor discarded.
	FirstFailedAt, LastFailedAt, FinishedAt time.Time

	// EditedFrom is the ID of the entry that this entry replaces, or 0. ReplayID
	// is the ID of the latest Replay that included the entry, or 0.
	EditedFrom, ReplayID int64

	// BlocksKey reports whether later messages of the ordering key wait for this
	// entry.
	BlocksKey bool

	// Envelope is the stored form of Message. Digest is a hash of the id and the payload.
	// If two messages have the same id but another payload, their digests differ.
	Envelope, Digest []byte

	origin string // origin of an imported entry, see Entry.exportOrigin
	edited bool   // whether the entry replaces another entry, in this database or in the database that exported it
}

// ErrNotFound means that the quarantine has no entry with this ID.
var ErrNotFound = errors.New("no such message")

// Get returns the entry with this ID, even if it was replayed, edited or discarded. It
// returns [ErrNotFound] if no entry has this ID.
func (q *Quarantine) Get(ctx context.Context, id int64) (Entry, error) {
	entry, err := q.table.get(ctx, id)
	if err != nil {
		return Entry{}, fmt.Errorf("poison: %w", err)
	}
	return entry, nil
}

// Page is a part of a list.
type Page struct {
	// Entries are in the order of their IDs. A page can contain fewer entries than
	// Filter.Limit, or none, even if later pages contain entries.
	Entries []Entry

	// Next is the value of Filter.AfterID for the next page, or 0 if this is the last page.
	Next int64
}

// List returns a page of the messages in quarantine that match. For a single condition,
// an index finds the matching entries. If the Filter has several conditions, List looks
// at no more than 10,000 of the entries that match the rarest condition, and Page.Next
// says where the search continues. A consumer and a topic together are one condition.
// FailedAfter and FailedBefore together are one condition. But this condition does not
// count if at most 5,000 entries failed in this period, because List then looks at
// these entries only.
func (q *Quarantine) List(ctx context.Context, f Filter) (Page, error) {
	f = f.withPage()
	if err := f.validate(); err != nil {
		return Page{}, fmt.Errorf("poison: list: %w", err)
	}
	p, err := q.table.list(ctx, f, func(tx *sql.Tx) (operate.Window, error) { return q.table.window(ctx, tx, f, false) })
	if err != nil {
		return Page{}, fmt.Errorf("poison: %w", err)
	}
	return p, nil
}

// Replayed returns the messages that were replayed or edited and have not been handled
// since, in the order of their IDs. It looks at no more than 10,000 of these messages,
// and Page.Next says where the search continues. The State of an entry shows whether
// the entry waits for its handler or behind another message of its ordering key.
func (q *Quarantine) Replayed(ctx context.Context, f Filter) (Page, error) {
	f = f.withPage()
	if err := f.validate(); err != nil {
		return Page{}, fmt.Errorf("poison: replayed: %w", err)
	}
	p, err := q.table.list(ctx, f, func(tx *sql.Tx) (operate.Window, error) { return q.table.replayed(ctx, tx, f) })
	if err != nil {
		return Page{}, fmt.Errorf("poison: %w", err)
	}
	return p, nil
}

func (t *table) list(ctx context.Context, f Filter, window func(tx *sql.Tx) (operate.Window, error)) (p Page, err error) {
	columns, contents := entryColumns, []string{"error", "stack", "digest", "envelope"}
	if t.withoutContent {
		contents = nil
		columns = strings.NewReplacer(" error,", " '',", " stack,", " '',", "digest, envelope", "'', ''").Replace(columns)
	}
	err = t.dialect.Look(ctx, t.db, func(tx *sql.Tx) error {
		w, err := window(tx)
		if err != nil {
			return err
		}
		p.Next = w.Next
		query := t.dialect.SQL(fmt.Sprintf(`SELECT %s FROM %s ORDER BY id LIMIT %d`, columns, w.From(contents...), f.limit()))
		rows, err := tx.QueryContext(ctx, query, w.Args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			entry, err := scanEntry(rows)
			if err != nil {
				return err
			}
			if t.withoutContent {
				entry.Message, entry.MessageErr, entry.Envelope, entry.Digest = nil, nil, nil, nil
			}
			p.Entries = append(p.Entries, entry)
		}
		return rows.Err()
	})
	if err != nil {
		return Page{}, fmt.Errorf("list parked messages: %w", err)
	}
	if n := len(p.Entries); n > 0 && int64(n) == f.limit() {
		p.Next = p.Entries[n-1].ID
	}
	return p, nil
}

// get returns the entry with this ID, in any state.
func (t *table) get(ctx context.Context, id int64) (entry Entry, err error) {
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		entry, err = t.getIn(ctx, tx, id)
		return err
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return Entry{}, fmt.Errorf("%w: %d", ErrNotFound, id)
	case err != nil:
		return Entry{}, fmt.Errorf("read parked message %d: %w", id, err)
	}
	return entry, nil
}

// getIn is like get, but runs in the transaction tx. If no entry has this ID, it
// returns sql.ErrNoRows.
func (t *table) getIn(ctx context.Context, tx *sql.Tx, id int64) (Entry, error) {
	return scanEntry(tx.QueryRowContext(ctx, t.sql.get, id))
}

const entryColumns = `id, consumer, topic, message_id, tenant, state, attempts, crashes, replays,
	reason, error, error_type, fingerprint, stack, {millis due_at}, {millis created_at},
	{millis first_failed_at}, {millis last_failed_at}, {millis finished_at},
	COALESCE(edited_from, 0), COALESCE(replay_id, 0), COALESCE(origin, ''), edited_from IS NOT NULL,
	ordering_key IS NOT NULL AND state IN ('waiting', 'quarantined'), digest, envelope`

func scanEntry(row interface{ Scan(dest ...any) error }) (Entry, error) {
	var (
		e                               Entry
		due, created                    int64
		firstFailed, lastFailed, finish sql.NullInt64
	)
	err := row.Scan(&e.ID, &e.Consumer, &e.Topic, &e.MessageID, &e.Tenant, &e.State, &e.Attempts, &e.Crashes, &e.Replays,
		&e.Reason, &e.Error, &e.ErrorType, &e.Fingerprint, &e.Stack, &due, &created, &firstFailed, &lastFailed, &finish,
		&e.EditedFrom, &e.ReplayID, &e.origin, &e.edited, &e.BlocksKey, &e.Digest, &e.Envelope)
	if err != nil {
		return Entry{}, err
	}
	e.DueAt, e.CreatedAt = time.UnixMilli(due), time.UnixMilli(created)
	e.FirstFailedAt, e.LastFailedAt, e.FinishedAt = timeOf(firstFailed), timeOf(lastFailed), timeOf(finish)
	e.Message, e.MessageErr = parked.Decode(e.Envelope)
	return e, nil
}

// timeOf converts milliseconds to a time. It returns the zero time for NULL.
func timeOf(millis sql.NullInt64) time.Time {
	if !millis.Valid {
		return time.Time{}
	}
	return time.UnixMilli(millis.Int64)
}
