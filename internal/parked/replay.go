package parked

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/failpoint"
)

// States of a replay.
const (
	ReplayRunning   = "running"
	ReplayPaused    = "paused"    // whoever ran it was told to end
	ReplayStopped   = "stopped"   // messages failed again
	ReplayAbandoned = "abandoned" // whoever ran it has not been heard of for its lease
	ReplayFinished  = "finished"
)

var (
	// ErrReplayRunning says that the consumer has a replay under way.
	ErrReplayRunning = errors.New("a replay of the consumer is under way")

	// ErrReplayNotFound says that there is no replay of that ID.
	ErrReplayNotFound = errors.New("no such replay")

	// ErrReplayFinished says that nothing of a replay is left to be done.
	ErrReplayFinished = errors.New("the replay has finished")

	// ErrReplayLost says that the lease of a replay ran out under whoever ran
	// it.
	ErrReplayLost = errors.New("the lease of the replay ran out")
)

// Plan is how to replay many entries.
type Plan struct {
	Canary        int  `json:"canary,omitempty"`
	Rate          int  `json:"rate,omitempty"`
	Window        int  `json:"window,omitempty"`
	StopOnFailure bool `json:"stop_on_failure,omitempty"`
	Force         bool `json:"force,omitempty"`
}

// Replay is a replay of many entries, and how far it is.
type Replay struct {
	ID         int64
	Consumer   string // "" is all of them
	Filter     Filter
	Plan       Plan
	Actor      string
	Why        string
	State      string
	StopReason string
	StartedAt  time.Time
	EndedAt    time.Time // zero while it runs

	Total    int64 // entries that matched when it began
	Replayed int64 // of those, how many were given back to their consumer
	Resolved int64 // of those, how many were handled
	Failed   int64 // and how many are in quarantine again, or were since
	Waiting  int64 // and how many are still to be handled

	act     Act // of who runs it, now
	token   string
	afterID int64
	untilID int64
	charged int64 // failures that were known when it stopped last
	seen    outcomes
}

// KnownFailures is how many had failed when it was resumed after a stop, or
// paused; whoever resumes it knows of these.
func (r *Replay) KnownFailures() int64 { return r.charged }

func (r *Replay) states() []string { return r.Plan.States(r.Filter.IDs != nil) }

// States are those that entries are replayed from. What was resolved is run
// again only if it is named.
func (p Plan) States(named bool) []string {
	if p.Force && named {
		return []string{Quarantined, Resolved}
	}
	return []string{Quarantined}
}

// BeginReplay enters a replay of what matches now, leased to the caller.
func (s *Store) BeginReplay(ctx context.Context, act Act, f Filter, plan Plan, lease time.Duration) (*Replay, error) {
	f = f.asStored() // JSON would make other texts of what is no text
	r := &Replay{Consumer: f.Consumer, Filter: f, Plan: plan, Actor: act.Actor, Why: act.Why, act: act, token: uuid.NewString()}
	filterText, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	planText, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	where := s.where(f, r.states()...)
	size := s.dialect.SQL(`SELECT COUNT(*), COALESCE(MAX(id), 0) FROM (
		SELECT id FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.arg(f.limit()) + `) AS chosen`)
	// Not while others wait: of many it takes its time.
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, size, where.args...).Scan(&r.Total, &r.untilID)
	})
	if err != nil {
		return nil, fmt.Errorf("count what matches: %w", err)
	}
	err = s.alone(ctx, f.Consumer, 0, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, s.sql.replays.insert, Clean(f.Consumer, maxName), string(filterText), string(planText),
			Clean(act.Actor, maxName), Clean(act.Why, maxError), r.Total, r.untilID, r.token, lease.Milliseconds()).Scan(&r.ID)
		failpoint.Hit("replay/begin")
		return err
	})
	if err != nil {
		return nil, err
	}
	failpoint.Hit("replay/begun")
	return s.again(ctx, r)
}

// ResumeReplay takes up a replay that does not run, leased to the caller.
func (s *Store) ResumeReplay(ctx context.Context, act Act, id int64, lease time.Duration) (*Replay, error) {
	r, err := s.ReplayOf(ctx, id)
	if err != nil {
		return nil, err
	}
	r.act, r.token = act, uuid.NewString()
	switch r.State {
	case ReplayFinished:
		return nil, fmt.Errorf("%w: %d", ErrReplayFinished, id)
	case ReplayStopped: // and of what it had given back by then more may have failed
		r.charged = r.Failed
	}
	err = s.alone(ctx, r.Consumer, id, func(tx *sql.Tx) error {
		moved, err := affected(tx.ExecContext(ctx, s.sql.replays.resume, id, r.token, lease.Milliseconds(), r.charged))
		if err != nil {
			return err
		}
		if moved == 0 {
			return fmt.Errorf("%w: %d", ErrReplayRunning, id)
		}
		failpoint.Hit("replay/resume")
		_, err = tx.ExecContext(ctx, s.sql.replays.resumed, Clean(act.Actor, maxName), Clean(act.Why, maxError), id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.again(ctx, r)
}

// alone runs start if no replay other than this one is under way for the
// consumer, and lets none begin meanwhile.
func (s *Store) alone(ctx context.Context, consumer string, this int64, start func(tx *sql.Tx) error) error {
	return s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		if s.sql.replays.lock != "" {
			if _, err := tx.ExecContext(ctx, s.sql.replays.lock); err != nil {
				return err
			}
		}
		var other int64
		err := tx.QueryRowContext(ctx, s.sql.replays.running, Clean(consumer, maxName), this).Scan(&other)
		switch {
		case err == nil:
			return fmt.Errorf("%w: %d", ErrReplayRunning, other)
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		return start(tx)
	})
}

// again returns a replay as it is now, for who runs it.
func (s *Store) again(ctx context.Context, r *Replay) (*Replay, error) {
	now, err := s.ReplayOf(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	now.act, now.token = r.act, r.token
	return now, nil
}

// ReplayOf returns the replay with that ID as it is now.
func (s *Store) ReplayOf(ctx context.Context, id int64) (r *Replay, err error) {
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		r, err = scanReplay(tx.QueryRowContext(ctx, s.sql.replays.get, id))
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

// Replays returns replays, the latest first: those with an ID lower than
// before, or with 0 from the last one on.
func (s *Store) Replays(ctx context.Context, before int64, limit int) (all []Replay, err error) {
	if before == 0 {
		before = 1<<63 - 1
	}
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, s.sql.replays.list, before, limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			r, err := scanReplay(rows)
			if err != nil {
				return err
			}
			all = append(all, *r)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list replays: %w", err)
	}
	return all, nil
}

func scanReplay(row interface{ Scan(dest ...any) error }) (*Replay, error) {
	var (
		r            Replay
		filter, plan string
		resolved     int64
		started      int64
		ended        sql.NullInt64
	)
	err := row.Scan(&r.ID, &r.Consumer, &filter, &plan, &r.Actor, &r.Why, &r.State, &r.StopReason, &r.Total,
		&r.untilID, &r.afterID, &r.Replayed, &r.Resolved, &r.charged, &started, &ended, &r.Waiting, &resolved)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(json.Unmarshal([]byte(filter), &r.Filter), json.Unmarshal([]byte(plan), &r.Plan)); err != nil {
		return nil, fmt.Errorf("replay %d: filter or plan: %w", r.ID, err)
	}
	if r.State != ReplayFinished {
		r.Resolved = resolved
	}
	r.Failed = r.Replayed - r.Resolved - r.Waiting
	r.StartedAt, r.EndedAt = time.UnixMilli(started), timeOf(ended)
	return &r, nil
}

// BeatReplay extends the lease and looks how far the replay is. A lease that
// ran out is taken again, if no other replay has come in between.
func (s *Store) BeatReplay(ctx context.Context, r *Replay, lease time.Duration) (*Replay, error) {
	err := s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error { return s.beat(ctx, tx, r, lease) })
	if errors.Is(err, ErrReplayLost) {
		err = s.alone(ctx, r.Consumer, r.ID, func(tx *sql.Tx) error {
			held, err := affected(tx.ExecContext(ctx, s.sql.replays.retake, r.ID, r.token, lease.Milliseconds()))
			if err == nil && held == 0 {
				err = ErrReplayLost
			}
			return err
		})
		if errors.Is(err, ErrReplayRunning) {
			err = fmt.Errorf("%w: %w", ErrReplayLost, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("replay %d: %w", r.ID, err)
	}
	now, err := s.look(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("look at replay %d: %w", r.ID, err)
	}
	return now, nil
}

func (s *Store) beat(ctx context.Context, tx *sql.Tx, r *Replay, lease time.Duration) error {
	held, err := affected(tx.ExecContext(ctx, s.sql.replays.beat, r.ID, r.token, lease.Milliseconds()))
	if err == nil && held == 0 {
		err = ErrReplayLost
	}
	return err
}

// AdvanceReplay gives the next entries back to their consumers, at most n. That
// and how far the replay is are one transaction, so that none is given back
// twice. It returns how many it were, and whether there may be more.
func (s *Store) AdvanceReplay(ctx context.Context, r *Replay, n int, lease time.Duration) (moved int64, more bool, err error) {
	where := s.where(r.Filter, r.states()...)
	next := s.dialect.SQL(`SELECT id FROM {parked} WHERE ` + where.String() +
		` AND id > ` + where.arg(r.afterID) + ` AND id <= ` + where.arg(r.untilID) +
		` AND (replay_id IS NULL OR replay_id <> ` + where.arg(r.ID) + `) ORDER BY id LIMIT ` + where.arg(n))
	after := r.afterID
	var due []int64
	err = s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		if err := s.beat(ctx, tx, r, lease); err != nil {
			return err
		}
		ids, err := selectIDs(ctx, tx, next, where.args)
		if err != nil || len(ids) == 0 {
			return err
		}
		more, after = true, ids[len(ids)-1]
		due, err = s.release(ctx, tx, r, ids)
		if err != nil {
			return err
		}
		failpoint.Hit("replay/released")
		_, err = tx.ExecContext(ctx, s.sql.replays.advance, r.ID, after, len(due))
		failpoint.Hit("replay/advance")
		return err
	})
	failpoint.Hit("replay/advanced")
	if err != nil {
		return 0, false, fmt.Errorf("replay %d: %w", r.ID, err)
	}
	r.afterID = after
	r.seen.gave(due)
	return int64(len(due)), more, nil
}

// release makes entries due, and enters it in the audit. It returns which those
// were: what somebody has discarded meanwhile stays so, and stays known.
func (s *Store) release(ctx context.Context, tx *sql.Tx, r *Replay, ids []int64) (due []int64, err error) {
	due, err = selectIDs(ctx, tx, s.sql.replays.moved+in(r.states())+` RETURNING id`, []any{r.ID, s.dialect.List(ids)})
	if err != nil {
		return nil, err
	}
	failpoint.Hit("replay/due")
	moved := s.dialect.List(due)
	if r.Plan.Force {
		if _, err := tx.ExecContext(ctx, s.sql.replays.forget, moved); err != nil {
			return nil, err
		}
		failpoint.Hit("replay/inbox-forgotten")
	}
	_, err = tx.ExecContext(ctx, s.sql.replays.audit, Clean(r.act.Actor, maxName), Clean(r.act.Why, maxError), moved)
	return due, err
}

// EndReplay gives the lease back, with how the replay ended.
func (s *Store) EndReplay(ctx context.Context, r *Replay, state, reason string) (*Replay, error) {
	err := s.dialect.Write(ctx, s.db, func(tx *sql.Tx) error {
		held, err := affected(tx.ExecContext(ctx, s.sql.replays.end, r.ID, r.token, state, Clean(reason, maxError), r.Resolved, r.Failed))
		failpoint.Hit("replay/end")
		if err == nil && held == 0 {
			err = ErrReplayLost
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("replay %d: %w", r.ID, err)
	}
	return s.again(ctx, r)
}

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
