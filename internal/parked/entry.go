package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// States of a row.
const (
	Waiting     = "waiting"
	Held        = "held" // behind the head of its ordering key
	Quarantined = "quarantined"
	Resolved    = "resolved"
	Discarded   = "discarded"
)

// Final lists, for SQL, the states that a row does not leave.
const Final = `('resolved', 'discarded')`

// Entry is a row to be looked at.
type Entry struct {
	Shown

	origin string
	edited bool
}

// Shown is what poison shows of an entry, which has these fields in this order.
type Shown struct {
	ID              int64
	Consumer, Topic string

	// Message is the message as it came, byte for byte; nil with MessageErr
	// set if the stored envelope is damaged.
	Message    *message.Message
	MessageErr error

	MessageID, Tenant                       string // cleaned; Message has the true ones
	Reason, Error, ErrorType, Fingerprint   string
	Attempts, Crashes, Replays              int
	State                                   string
	DueAt, CreatedAt                        time.Time
	FirstFailedAt, LastFailedAt, FinishedAt time.Time // zero if it has not
	EditedFrom, ReplayID                    int64     // the entry that it is the edited form of, the replay of many it was part of last; or 0
	BlocksKey                               bool      // later messages of its ordering key wait for it

	// Envelope is what Message was read from, and Digest tells messages of one
	// id apart.
	Envelope, Digest []byte
}

// List returns rows in order of their ID; without states, or with "", those of
// any.
func (s *Store) List(ctx context.Context, f Filter, states ...string) ([]Entry, error) {
	return s.list(ctx, f, s.where(f, states...))
}

// Replayed returns rows that were replayed and not handled since.
func (s *Store) Replayed(ctx context.Context, f Filter) ([]Entry, error) {
	where := s.where(f)
	where.clauses = append(where.clauses, "replays > 0", in([]string{Waiting, Held}))
	return s.list(ctx, f, where)
}

func (s *Store) list(ctx context.Context, f Filter, where *condition) ([]Entry, error) {
	query := s.dialect.SQL(`SELECT ` + entryColumns + ` FROM {parked} WHERE ` + where.String() +
		` ORDER BY id LIMIT ` + where.arg(f.limit()))
	var entries []Entry
	err := s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, query, where.args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			entry, err := scanEntry(rows)
			if err != nil {
				return err
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

// Next returns the IDs of the rows that List would return first: at most n, and
// no more than have so many bytes, but for the first one. Rows are of any size.
func (s *Store) Next(ctx context.Context, f Filter, n int, bytes int64, states ...string) (ids []int64, err error) {
	where := s.where(f, states...)
	query := s.dialect.SQL(`SELECT id, length(envelope) FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.arg(n))
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return eachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var id, size int64
			err := scan(&id, &size)
			bytes -= size
			if bytes >= 0 || len(ids) == 0 {
				ids = append(ids, id)
			}
			return err
		}, query, where.args...)
	})
	if err != nil {
		return nil, fmt.Errorf("look for parked messages: %w", err)
	}
	return ids, nil
}

// ErrNotFound says that there is no row of that ID in the state that was asked
// for.
var ErrNotFound = errors.New("no such message")

// Get returns the row with that ID.
func (s *Store) Get(ctx context.Context, id int64) (Entry, error) {
	var entry Entry
	err := s.dialect.Read(ctx, s.db, func(tx *sql.Tx) (err error) {
		entry, err = scanEntry(tx.QueryRowContext(ctx, s.sql.get, id))
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

func scanEntry(row interface{ Scan(dest ...any) error }) (Entry, error) {
	var (
		e                           Entry
		due, created                int64
		firstFail, lastly, finished sql.NullInt64
	)
	err := row.Scan(&e.ID, &e.Consumer, &e.Topic, &e.MessageID, &e.Tenant, &e.State, &e.Attempts, &e.Crashes, &e.Replays,
		&e.Reason, &e.Error, &e.ErrorType, &e.Fingerprint, &due, &created, &firstFail, &lastly, &finished,
		&e.EditedFrom, &e.ReplayID, &e.origin, &e.edited, &e.BlocksKey, &e.Digest, &e.Envelope)
	if err != nil {
		return Entry{}, err
	}
	e.DueAt, e.CreatedAt = time.UnixMilli(due), time.UnixMilli(created)
	e.FirstFailedAt, e.LastFailedAt, e.FinishedAt = timeOf(firstFail), timeOf(lastly), timeOf(finished)
	e.Message, e.MessageErr = Decode(e.Envelope)
	return e, nil
}

// timeOf is zero for NULL.
func timeOf(millis sql.NullInt64) time.Time {
	if !millis.Valid {
		return time.Time{}
	}
	return time.UnixMilli(millis.Int64)
}
