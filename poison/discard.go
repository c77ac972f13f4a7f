package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/parked"
)

// ErrClaimed means that the message blocks its ordering key, and cannot be discarded or
// edited now, because a handler is handling a copy of it. If Discard and Edit waited
// for the handler, they would also block the later messages of the key.
var ErrClaimed = errors.New("a copy of the message is being handled: try again when that has ended")

// Discard takes entries out of the quarantine, and their messages are not handled any
// more. You can still read the entries with [Quarantine.Get]. Discard adds the ids of
// the messages to the inbox, so that the handler is not called for a late copy. Discard
// changes all entries, or it returns an error and changes none. It returns
// [ErrNotFound] if an entry is not in quarantine, and [ErrClaimed] if an entry cannot
// be discarded yet.
func (q *Quarantine) Discard(ctx context.Context, act Act, ids ...int64) error {
	ids, err := operate.Distinct(ids)
	if err = errors.Join(act.ValidateLoss(), err); err != nil {
		return fmt.Errorf("poison: discard: %w", err)
	}
	if err := q.table.discard(ctx, act, ids); err != nil {
		return fmt.Errorf("poison: discard: %w", err)
	}
	q.instruments.discarded.Add(int64(len(ids)), 0)
	return nil
}

// discardBatch is the number of entries that one transaction discards.
const discardBatch = 100

// DiscardMatching discards the matching entries as [Quarantine.Discard] does, and
// returns their number. Large numbers of entries are discarded in several transactions.
// If DiscardMatching returns an error, the entries that it has counted are discarded,
// and all other entries are unchanged. There is one exception: if the outcome of a
// commit is unknown, up to 100 more entries may be discarded. Entries that are stored
// after the start are not discarded. To see the matching entries first, call
// [Quarantine.DryRun].
func (q *Quarantine) DiscardMatching(ctx context.Context, act Act, f Filter) (discarded int, err error) {
	if err := errors.Join(act.ValidateLoss(), f.validateChange()); err != nil {
		return 0, fmt.Errorf("poison: discard: %w", err)
	}
	until, err := q.table.lastID(ctx)
	if err != nil {
		return 0, fmt.Errorf("poison: discard: %w", err)
	}
	for f.Limit == 0 || discarded < f.Limit {
		n := discardBatch
		if f.Limit > 0 {
			n = min(n, f.Limit-discarded)
		}
		some, last, err := q.table.discardMatching(ctx, act, f, until, n)
		if err != nil {
			return discarded, fmt.Errorf("poison: discard: %w", err)
		}
		if last == 0 {
			break
		}
		discarded += some
		f.AfterID = last
		q.instruments.discarded.Add(int64(some), 0)
	}
	return discarded, nil
}

func (t *table) discard(ctx context.Context, act Act, ids []int64) error {
	return t.parked.ReplaceHeads(ctx, func(*sql.Tx) ([]int64, error) { return ids, nil }, func(tx *sql.Tx) error {
		return each(ids, func(id int64) error { return t.discardIn(ctx, tx, act, "discard", id) })
	})
}

// lastID returns the highest ID of an entry in quarantine, or 0.
func (t *table) lastID(ctx context.Context) (id int64, err error) {
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, t.sql.last).Scan(&id) })
	return id, err
}

// discardMatching discards at most n matching entries whose ID is at most until. It
// returns the number of discarded entries, and the ID of the last entry that it found.
// If it found no entry, this ID is 0.
func (t *table) discardMatching(ctx context.Context, act Act, f Filter, until int64, n int) (discarded int, last int64, err error) {
	where := t.where(f, parked.Quarantined)
	query := t.dialect.SQL(`SELECT id FROM {parked} WHERE ` + where.String() + ` AND id <= ` + where.Arg(until) +
		` ORDER BY id LIMIT ` + where.Arg(n))
	var ids []int64
	err = t.parked.ReplaceHeads(ctx, func(tx *sql.Tx) (_ []int64, err error) {
		ids, err = selectIDs(ctx, tx, query, where.Args)
		return ids, err
	}, func(tx *sql.Tx) error {
		discarded, last = 0, 0
		for _, id := range ids {
			last = id
			err := t.discardIn(ctx, tx, act, "discard", id)
			switch {
			case errors.Is(err, sql.ErrNoRows): // the entry has already left the quarantine
			case err != nil:
				return fmt.Errorf("message %d: %w", id, err)
			default:
				discarded++
			}
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	return discarded, last, nil
}

const lockTimeout = "55P03" // lock_not_available

// discardIn discards one entry, and adds the id of its message to the inbox, so that
// the handler is not called for a late copy. It returns sql.ErrNoRows if the entry is
// not in quarantine.
func (t *table) discardIn(ctx context.Context, tx *sql.Tx, act Act, action string, id int64) error {
	var (
		consumer, messageID string
		envelope            []byte
	)
	if err := tx.QueryRowContext(ctx, t.sql.discard, id).Scan(&consumer, &messageID, &envelope); err != nil {
		return err
	}
	failpoint.Hit("poison/discard")
	_, err := t.parked.Tombstone(ctx, tx, consumer, messageID, envelope)
	if dialect.State(err) == lockTimeout {
		return fmt.Errorf("%w: %w", ErrClaimed, err)
	}
	if err != nil {
		return err
	}
	failpoint.Hit("poison/tombstone")
	return t.record(ctx, tx, act, action, id, consumer, messageID)
}
