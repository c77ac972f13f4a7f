package quarantine

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Replay gives entries back to the consumers that failed. The messages are due immediately, and
// their attempts and crashes are counted from zero again. Replay changes all entries or none: it
// returns [operate.ErrNotFound] if one is not in quarantine, [ErrUndecodable] if one cannot be
// decoded, and [ErrNotRunning] if a consumer is not running. It does not wait for the handlers:
// [Entries.Replayed] lists the messages that still wait. For many entries, use
// [Entries.ReplayMatching].
func (q *Entries) Replay(ctx context.Context, act operate.Act, ids ...int64) error {
	ids, err := rows.Distinct(ids)
	if err = errors.Join(act.Validate(), err); err != nil {
		return fmt.Errorf("quarantine: replay: %w", err)
	}
	if err := q.checkRunning(ctx, operate.Filter{IDs: ids}, parkedrows.Quarantined); err != nil {
		return fmt.Errorf("quarantine: replay: %w", err)
	}
	if err := q.table.replay(ctx, act, ids); err != nil {
		return fmt.Errorf("quarantine: replay: %w", err)
	}
	q.replayed.Add(int64(len(ids)), 0)
	return nil
}

// ErrUndecodable means that the entry contains only the raw form of a message. It can be replayed after
// it was edited.
var ErrUndecodable = errors.New("the message could not be decoded when it came: edit it")

func (t *table) replay(ctx context.Context, act operate.Act, ids []int64) error {
	return t.Write(ctx, func(tx *sql.Tx) error {
		return each(ids, func(id int64) error {
			var (
				consumer, messageID string
				undecodable         bool
			)
			if err := tx.QueryRowContext(ctx, t.sql.replay, id).Scan(&consumer, &messageID, &undecodable); err != nil {
				return err
			}
			if undecodable {
				return ErrUndecodable
			}
			failpoint.Hit("operate/quarantine/replay")
			return t.record(ctx, tx, act, "replay", id, consumer, messageID)
		})
	})
}

// Discard takes entries out of the quarantine, and adds the ids of their messages to the inbox, so
// that the handler is not called for a late copy. [Entries.Get] still reads them. Discard changes
// all entries or none: it returns [operate.ErrNotFound] if one is not in quarantine, and
// [operate.ErrClaimed] if one cannot be discarded yet.
func (q *Entries) Discard(ctx context.Context, act operate.Act, ids ...int64) error {
	ids, err := rows.Distinct(ids)
	if err = errors.Join(act.ValidateLoss(), err); err != nil {
		return fmt.Errorf("quarantine: discard: %w", err)
	}
	if err := q.table.discard(ctx, act, ids); err != nil {
		return fmt.Errorf("quarantine: discard: %w", err)
	}
	q.discarded.Add(int64(len(ids)), 0)
	return nil
}

const discardBatch = 100

// DiscardMatching discards the matching entries as [Entries.Discard] does, in several transactions,
// and returns their number. Even with an error, the counted entries are discarded, and all others
// unchanged, except for up to 100 of a commit with an unknown outcome. Entries that are stored
// after the start stay. To see the matching entries first, call [Entries.DryRun].
func (q *Entries) DiscardMatching(ctx context.Context, act operate.Act, f operate.Filter) (discarded int, err error) {
	err = errors.Join(act.ValidateLoss(), q.table.CheckChange(f))
	var until int64
	if err == nil {
		until, err = q.table.lastID(ctx)
	}
	var report operate.Report
	if err == nil {
		err = rows.EachBatch(ctx, f, operate.Plan{}, discardBatch, until, &report, func(f operate.Filter, n int) (int64, operate.Report, error) {
			some, last, err := q.table.discardMatching(ctx, act, f, until, n)
			q.discarded.Add(int64(some), 0)
			return cmp.Or(last, until), operate.Report{Changed: some}, err
		})
	}
	if err != nil {
		return report.Changed, fmt.Errorf("quarantine: discard: %w", err)
	}
	return report.Changed, nil
}

func (t *table) discard(ctx context.Context, act operate.Act, ids []int64) error {
	return t.parked.ReplaceHeads(ctx, func(*sql.Tx) ([]int64, error) { return ids, nil }, func(tx *sql.Tx) error {
		return each(ids, func(id int64) error { return t.discardIn(ctx, tx, act, "discard", id) })
	})
}

func (t *table) lastID(ctx context.Context) (id int64, err error) {
	err = t.Look(ctx, func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, t.sql.last).Scan(&id) })
	return id, err
}

// discardMatching discards at most n matching entries up to the ID until, and returns the ID of the
// last one that it found, or 0.
func (t *table) discardMatching(
	ctx context.Context, act operate.Act, f operate.Filter, until int64, n int,
) (discarded int, last int64, err error) {
	where := t.where(f, parkedrows.Quarantined)
	query := t.SQL(`SELECT id FROM {parked} WHERE ` + where.String() + ` AND id <= ` + where.Arg(until) +
		` ORDER BY id LIMIT ` + where.Arg(n))
	var ids []int64
	err = t.parked.ReplaceHeads(ctx, func(tx *sql.Tx) (_ []int64, err error) {
		ids, err = rows.IDs(ctx, tx, query, where.Args...)
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

// discardIn adds the id to the inbox, so that the handler is not called for a late copy. It returns
// sql.ErrNoRows if the entry is not in quarantine.
func (t *table) discardIn(ctx context.Context, tx *sql.Tx, act operate.Act, action string, id int64) error {
	var (
		consumer, messageID string
		envelope            []byte
	)
	if err := tx.QueryRowContext(ctx, t.sql.discard, id).Scan(&consumer, &messageID, &envelope); err != nil {
		return err
	}
	failpoint.Hit("operate/quarantine/discard")
	_, err := t.parked.Tombstone(ctx, tx, consumer, messageID, envelope)
	if dialect.State(err) == lockTimeout {
		return fmt.Errorf("%w: %w", operate.ErrClaimed, err)
	}
	if err != nil {
		return err
	}
	failpoint.Hit("operate/quarantine/tombstone")
	return t.record(ctx, tx, act, action, id, consumer, messageID)
}
