package poison

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/operate"
)

// replayOf returns the current state of the replay with this ID.
func (t *table) replayOf(ctx context.Context, id int64) (r *leasedReplay, err error) {
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		r, err = scanReplay(tx.QueryRowContext(ctx, t.sql.replays.get, id))
		return err
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("%w: %d", ErrReplayNotFound, id)
	case err != nil:
		return nil, fmt.Errorf("read replay %d: %w", id, err)
	}
	return r, nil
}

// replays returns the latest replays whose ID is lower than the parameter before. If
// this parameter is 0, it returns the latest of all replays.
func (t *table) replays(ctx context.Context, before int64, limit int) (all []Replay, err error) {
	if before == 0 {
		before = math.MaxInt64
	}
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		all = []Replay{}
		rows, err := tx.QueryContext(ctx, t.sql.replays.list, before, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			r, err := scanReplay(rows)
			if err != nil {
				return err
			}
			all = append(all, r.Replay)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list replays: %w", err)
	}
	return all, nil
}

func scanReplay(row interface{ Scan(dest ...any) error }) (*leasedReplay, error) {
	var (
		r            leasedReplay
		filter, plan string
		resolved     int
		stale        int
		started      int64
		ended        sql.NullInt64
	)
	err := row.Scan(&r.ID, &r.Source, &r.Consumer, &filter, &plan, &r.Actor, &r.Why, &r.State, &r.StopReason, &r.Total,
		&r.untilID, &r.afterID, &r.Replayed, &r.Resolved, &r.knownFailures, &r.Stale, &started, &ended, &r.Waiting, &resolved, &stale)
	if err != nil {
		return nil, err
	}
	err = json.Unmarshal([]byte(plan), &r.Plan)
	if r.Source == operate.SourceQuarantine {
		err = errors.Join(err, json.Unmarshal([]byte(filter), &r.Filter))
	}
	if err != nil {
		return nil, fmt.Errorf("replay %d: filter or plan: %w", r.ID, err)
	}
	r.StartedAt, r.EndedAt = time.UnixMilli(started), timeOf(ended)
	if r.Source != operate.SourceQuarantine {
		return &r, nil
	}
	if r.State != ReplayFinished {
		r.Resolved, r.Stale = resolved, stale
	}
	r.Failed = r.Replayed - r.Resolved - r.Stale - r.Waiting
	return &r, nil
}

// advanceReplay makes up to n more entries due for their consumers. The same transaction
// stores the progress of the replay, so that no entry is replayed twice. It returns the
// number of replayed entries, and whether more entries may remain.
func (t *table) advanceReplay(ctx context.Context, r *leasedReplay, n int, lease time.Duration) (replayed int, more bool, err error) {
	where := t.where(r.Filter, r.states()...)
	next := t.dialect.SQL(`SELECT id FROM {parked} WHERE ` + where.String() +
		` AND id > ` + where.Arg(r.afterID) + ` AND id <= ` + where.Arg(r.untilID) +
		` AND (replay_id IS NULL OR replay_id <> ` + where.Arg(r.ID) + `) ORDER BY id LIMIT ` + where.Arg(n))
	var (
		after int64
		due   []int64
	)
	err = t.dialect.Write(ctx, t.db, func(tx *sql.Tx) error {
		more, after, due = false, r.afterID, nil
		if err := t.extendReplay(ctx, tx, r, lease); err != nil {
			return err
		}
		ids, err := selectIDs(ctx, tx, next, where.Args)
		if err != nil || len(ids) == 0 {
			return err
		}
		more, after = true, ids[len(ids)-1]
		due, err = t.makeDue(ctx, tx, r, ids)
		if err != nil {
			return err
		}
		failpoint.Hit("replay/released")
		_, err = tx.ExecContext(ctx, t.sql.replays.advance, r.ID, after, len(due))
		failpoint.Hit("replay/advance")
		return err
	})
	failpoint.Hit("replay/advanced")
	if err != nil {
		return 0, false, fmt.Errorf("replay %d: %w", r.ID, err)
	}
	r.afterID = after
	r.outcomes.addWaiting(due)
	return len(due), more, nil
}

// makeDue makes entries due, and records this in the audit log. It returns the IDs of
// the entries that it changed. An entry that was discarded in the meantime stays
// discarded, and the inbox keeps the id of its message.
func (t *table) makeDue(ctx context.Context, tx *sql.Tx, r *leasedReplay, ids []int64) (due []int64, err error) {
	due, err = selectIDs(ctx, tx, t.sql.replays.makeDue+stateIn(r.states())+` RETURNING id`, []any{r.ID, t.dialect.List(ids)})
	if err != nil {
		return nil, err
	}
	failpoint.Hit("replay/due")
	changed := t.dialect.List(due)
	if r.Plan.Force {
		if _, err := tx.ExecContext(ctx, t.sql.replays.forgetInbox, changed); err != nil {
			return nil, err
		}
		failpoint.Hit("replay/inbox-forgotten")
	}
	_, err = tx.ExecContext(ctx, t.sql.replays.audit,
		parked.Clean(r.act.Actor, parked.MaxName), parked.Clean(r.act.Why, parked.MaxError), changed)
	return due, err
}
