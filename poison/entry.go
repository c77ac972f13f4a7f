package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/parked"
)

// Entry is a message in quarantine, with the reason why it is there.
type Entry struct {
	// ID is the argument of Replay, Edit and Discard.
	ID int64

	// Consumer is the name of the consumer that failed, Topic the topic of its
	// subscription.
	Consumer, Topic string

	// Message is the message as it came, byte for byte; nil, with MessageErr set,
	// if the stored Envelope is damaged. Both are nil with Config.WithoutContent.
	Message    *message.Message
	MessageErr error

	// MessageID is the id of the message, Tenant the tenant to which it belongs.
	// Both are bounded, and characters that a text column cannot store are
	// replaced. Message has the true values.
	MessageID, Tenant string

	// Reason is one of the Reason constants. Error is the text of the last
	// failure, and ErrorType the Go type of that error. Failures with one cause
	// have the same Fingerprint, see Group.
	Reason, Error, ErrorType, Fingerprint string

	// Attempts is the number of calls of the handler, Crashes the number of
	// processes that ended while they ran the message, and Replays the number of
	// replays of the entry.
	Attempts, Crashes, Replays int

	// State is "quarantined". An entry that was replayed, edited or discarded is
	// "waiting", "held" behind the head of its ordering key, "resolved" or
	// "discarded".
	State string

	// DueAt is the time of the next attempt of a waiting entry. CreatedAt is the
	// time at which the message was first stored.
	DueAt, CreatedAt time.Time

	// FirstFailedAt and LastFailedAt are zero if the message never failed.
	// FinishedAt is zero unless the entry is resolved or discarded.
	FirstFailedAt, LastFailedAt, FinishedAt time.Time

	// EditedFrom is the ID of the entry that this entry replaces, or 0. ReplayID
	// is the ID of the latest Replay that included the entry, or 0.
	EditedFrom, ReplayID int64

	// BlocksKey reports whether later messages of the ordering key wait for this
	// entry.
	BlocksKey bool

	// Envelope is the stored form of Message. Digest distinguishes messages that
	// have the same MessageID.
	Envelope, Digest []byte

	origin string // of an imported entry, see Entry.exportOrigin
	edited bool   // it replaces another entry, in this database or where it was exported
}

// ErrNotFound says that the quarantine has no entry of that ID.
var ErrNotFound = errors.New("no such message")

// Get returns the entry with that ID, also after it was replayed, edited or
// discarded. It returns [ErrNotFound] if no entry has that ID.
func (q *Quarantine) Get(ctx context.Context, id int64) (Entry, error) {
	entry, err := q.table.get(ctx, id)
	if err != nil {
		return Entry{}, fmt.Errorf("poison: %w", err)
	}
	return entry, nil
}

// List returns the messages in quarantine that match, in the order of their
// IDs.
func (q *Quarantine) List(ctx context.Context, f Filter) ([]Entry, error) {
	f = f.withPage()
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("poison: list: %w", err)
	}
	entries, err := q.table.list(ctx, f, func(tx *sql.Tx) (*operate.Conditions, error) { return q.table.selected(ctx, tx, f) })
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return entries, nil
}

// Replayed returns the messages that were replayed or edited and have not been
// handled since, in the order of their IDs. State tells whether an entry waits
// for its handler or behind another message of its ordering key.
func (q *Quarantine) Replayed(ctx context.Context, f Filter) ([]Entry, error) {
	f = f.withPage()
	if err := f.validate(); err != nil {
		return nil, fmt.Errorf("poison: replayed: %w", err)
	}
	where := q.table.where(f)
	where.Texts = append(where.Texts, "replays > 0", stateIn([]string{parked.Waiting, parked.Held}))
	entries, err := q.table.list(ctx, f, func(*sql.Tx) (*operate.Conditions, error) { return where, nil })
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return entries, nil
}

func (t *table) list(
	ctx context.Context, f Filter, conditions func(tx *sql.Tx) (*operate.Conditions, error),
) (entries []Entry, err error) {
	columns := entryColumns
	if t.withoutContent {
		columns = strings.NewReplacer(" error,", " '',", "digest, envelope", "'', ''").Replace(columns)
	}
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		entries = nil
		where, err := conditions(tx)
		if err == nil {
			err = t.dialect.InOrder(ctx, tx)
		}
		if err != nil {
			return err
		}
		args := append(slices.Clone(where.Args), f.limit())
		query := t.dialect.SQL(fmt.Sprintf(`SELECT %s FROM {parked} WHERE %s ORDER BY id LIMIT $%d`, columns, where, len(args)))
		rows, err := tx.QueryContext(ctx, query, args...)
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
			entries = append(entries, entry)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list parked messages: %w", err)
	}
	return entries, nil
}

// get returns the entry with that ID, in whatever state it is.
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

// getIn is get in a transaction. It returns sql.ErrNoRows if no entry has that ID.
func (t *table) getIn(ctx context.Context, tx *sql.Tx, id int64) (Entry, error) {
	return scanEntry(tx.QueryRowContext(ctx, t.sql.get, id))
}

const entryColumns = `id, consumer, topic, message_id, tenant, state, attempts, crashes, replays,
	reason, error, error_type, fingerprint, {millis due_at}, {millis created_at},
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
		&e.Reason, &e.Error, &e.ErrorType, &e.Fingerprint, &due, &created, &firstFailed, &lastFailed, &finish,
		&e.EditedFrom, &e.ReplayID, &e.origin, &e.edited, &e.BlocksKey, &e.Digest, &e.Envelope)
	if err != nil {
		return Entry{}, err
	}
	e.DueAt, e.CreatedAt = time.UnixMilli(due), time.UnixMilli(created)
	e.FirstFailedAt, e.LastFailedAt, e.FinishedAt = timeOf(firstFailed), timeOf(lastFailed), timeOf(finish)
	e.Message, e.MessageErr = parked.Decode(e.Envelope)
	return e, nil
}

// timeOf is zero for NULL.
func timeOf(millis sql.NullInt64) time.Time {
	if !millis.Valid {
		return time.Time{}
	}
	return time.UnixMilli(millis.Int64)
}
