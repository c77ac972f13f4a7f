package rows

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
)

// outcomes counts the replayed entries by outcome. Each update queries only those that were waiting
// before, so it does not take longer the more entries are settled.
type outcomes struct {
	known    int     // number of counted entries: the entries below and the failed entries
	resolved int     // number of handled entries
	stale    int     // number of entries that are in quarantine again because their version is stale
	waiting  []int64 // IDs of entries that still wait
}

// stale is what the query returns in place of a state for a stale version.
const stale = "stale"

func (o *outcomes) addWaiting(ids []int64) {
	o.known += len(ids)
	o.waiting = append(o.waiting, ids...)
}

func (s *Replays) readOutcomes(ctx context.Context, r *Replay) (now *Replay, err error) {
	err = s.db.Look(ctx, func(tx *sql.Tx) error {
		now, err = scanReplay(tx.QueryRowContext(ctx, s.sql.row, r.ID).Scan)
		if err != nil {
			return err
		}
		now.Act, now.token, now.Skipped, now.outcomes = r.Act, r.token, r.Skipped, r.outcomes
		if now.outcomes.known == now.Changed {
			err = s.updateOutcomes(ctx, tx, now)
		} else { // the replay was resumed, or a commit with an unknown outcome has succeeded
			err = s.countOutcomes(ctx, tx, now)
		}
		now.Resolved, now.Stale, now.Waiting = now.outcomes.resolved, now.outcomes.stale, len(now.outcomes.waiting)
		now.Failed = now.Changed - now.Resolved - now.Stale - now.Waiting
		return err
	})
	return now, err
}

func (s *Replays) updateOutcomes(ctx context.Context, tx *sql.Tx, r *Replay) error {
	if len(r.outcomes.waiting) == 0 {
		return nil
	}
	var waiting []int64
	err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			id    int64
			state string
		)
		err := scan(&id, &state)
		switch state {
		case parkedrows.Waiting:
			waiting = append(waiting, id)
		case parkedrows.Resolved:
			r.outcomes.resolved++
		case stale:
			r.outcomes.stale++
		}
		return err
	}, s.sql.outcomes, s.db.List(r.outcomes.waiting), r.ID)
	r.outcomes.waiting = waiting
	return err
}

func (s *Replays) countOutcomes(ctx context.Context, tx *sql.Tx, r *Replay) error {
	r.outcomes = outcomes{known: r.Changed}
	return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			id              int64
			resolved, stale int
		)
		err := scan(&id, &resolved, &stale)
		r.outcomes.resolved += resolved
		r.outcomes.stale += stale
		if id > 0 {
			r.outcomes.waiting = append(r.outcomes.waiting, id)
		}
		return err
	}, s.sql.count, r.ID)
}

// Get returns the current state of the replay with this ID, or [operate.ErrReplayNotFound].
func (s *Replays) Get(ctx context.Context, id int64) (operate.Replay, error) {
	r, err := s.get(ctx, id)
	if err != nil {
		return operate.Replay{}, err
	}
	return r.Replay, nil
}

func (s *Replays) get(ctx context.Context, id int64) (r *Replay, err error) {
	err = s.db.Look(ctx, func(tx *sql.Tx) error {
		r, err = scanReplay(tx.QueryRowContext(ctx, s.sql.get, id).Scan)
		return err
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, fmt.Errorf("%w: %d", operate.ErrReplayNotFound, id)
	case err != nil:
		return nil, fmt.Errorf("read replay %d: %w", id, err)
	}
	return r, nil
}

// Latest returns the latest replays of all sources below the ID before, or of all if it is 0.
func (s *Replays) Latest(ctx context.Context, before int64) (all []operate.Replay, err error) {
	if before == 0 {
		before = math.MaxInt64
	}
	err = s.db.Look(ctx, func(tx *sql.Tx) error {
		all = []operate.Replay{}
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			r, err := scanReplay(scan)
			if err == nil {
				all = append(all, r.Replay)
			}
			return err
		}, s.sql.list, before, PageRows)
	})
	if err != nil {
		return nil, fmt.Errorf("list replays: %w", err)
	}
	return all, nil
}

func scanReplay(scan func(dest ...any) error) (*Replay, error) {
	var (
		r            Replay
		filter, plan string
		resolved     int
		stale        int
		started      int64
		ended        sql.NullInt64
	)
	err := scan(&r.ID, &r.Source, &r.Consumer, &filter, &plan, &r.Actor, &r.Why, &r.State, &r.StopReason, &r.Total,
		&r.UntilID, &r.AfterID, &r.Changed, &r.Resolved, &r.knownFailures, &r.Stale, &started, &ended, &r.Waiting, &resolved, &stale)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(json.Unmarshal([]byte(plan), &r.Plan), json.Unmarshal([]byte(filter), &r.Filter)); err != nil {
		return nil, fmt.Errorf("replay %d: filter or plan: %w", r.ID, err)
	}
	r.StartedAt, r.EndedAt = Millis(started), Time(ended)
	if r.Source != operate.SourceQuarantine {
		return &r, nil
	}
	if r.State != operate.ReplayFinished {
		r.Resolved, r.Stale = resolved, stale
	}
	r.Failed = r.Changed - r.Resolved - r.Stale - r.Waiting
	return &r, nil
}
