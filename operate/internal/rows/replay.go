package rows

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
)

// Replays runs the replays of one source, and stores them in the table of replays.
type Replays struct {
	db     DB
	source Source
	sql    replayQueries
}

// Source is a table whose messages can be replayed.
type Source struct {
	Name  string // one of the Source constants of package operate
	Table Table
	Lease time.Duration
	Batch int // maximum number of messages that one transaction replays

	// Outcomes says that the rows of once_parked show what became of each message. A consumer then
	// has one running replay at a time.
	Outcomes bool

	// Count returns how many messages match now, at most f.Limit, and their highest ID.
	Count func(ctx context.Context, f operate.Filter, plan operate.Plan) (n int, last int64, err error)

	// Take replays at most n messages above r.AfterID and up to r.UntilID. It returns the ID of the
	// last one that it examined, or 0 if none is left, and the IDs of the replayed and the skipped
	// ones.
	Take func(ctx context.Context, tx *sql.Tx, r *Replay, n int) (after int64, taken, skipped []int64, err error)

	// Taken is called with the number of replayed messages after the commit. It may be nil.
	Taken func(n int)
}

// Replay is a replay that this process runs while the row of the replay contains its token.
type Replay struct {
	operate.Replay

	Act     operate.Act // act that began or resumed the current run
	AfterID int64       // ID of the last replayed message
	UntilID int64       // ID of the last message that matched when the replay began

	token string

	// knownFailures do not stop the replay again: it was stopped or paused with them.
	knownFailures int

	outcomes outcomes
}

// NewReplays returns the replays of a source.
func NewReplays(db DB, source Source) *Replays {
	return &Replays{db, source, newReplayQueries(db.Dialect)}
}

// Begin runs a replay of what matches f now. Without a match it is not stored, and has no ID.
func (s *Replays) Begin(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Replay, error) {
	r, err := s.Start(ctx, act, f, plan)
	if err != nil || r.ID == 0 {
		return r.Replay, err
	}
	return s.run(ctx, r, plan.Progress)
}

// Start stores a replay and takes its lease, but replays nothing.
func (s *Replays) Start(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (*Replay, error) {
	f = s.source.Table.Stored(f) // JSON would change invalid UTF-8 in another way
	r := &Replay{Replay: operate.Replay{
		Source: s.source.Name, Consumer: f.Consumer, Filter: f, Plan: plan, Actor: act.Actor, Why: act.Why,
	}}
	r.Act, r.token = act, uuid.NewString()
	filterText, err := json.Marshal(f)
	if err != nil {
		return r, err
	}
	planText, err := json.Marshal(plan)
	if err != nil {
		return r, err
	}
	// Counting many messages takes time, so it is done before the lock is taken.
	if r.Total, r.UntilID, err = s.source.Count(ctx, f, plan); err != nil {
		return r, fmt.Errorf("count the matching messages: %w", err)
	}
	switch {
	case r.Total == 0 && f.Fingerprint != "": // probably misspelt
		return r, fmt.Errorf("failure group %q: %w", f.Fingerprint, operate.ErrNotFound)
	case r.Total == 0:
		r.State = operate.ReplayFinished
		return r, s.alone(ctx, f.Consumer, 0, func(*sql.Tx) error { return nil })
	}
	err = s.alone(ctx, f.Consumer, 0, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, s.sql.insert, s.source.Name, parkedrows.Clean(f.Consumer, parkedrows.MaxName),
			string(filterText), string(planText),
			parkedrows.Clean(act.Actor, parkedrows.MaxName), parkedrows.Clean(act.Why, parkedrows.MaxError),
			r.Total, r.UntilID, r.token, s.lease(plan)).Scan(&r.ID)
		failpoint.Hit("replay/begin")
		return err
	})
	if err != nil {
		r.ID = 0
		return r, err
	}
	failpoint.Hit("replay/begun")
	return s.Reload(ctx, r)
}

// A replay with a rate must not lose its lease while it waits between batches.
func (s *Replays) lease(plan operate.Plan) int64 {
	lease := s.source.Lease
	if plan.Rate > 0 {
		lease += LongestWait
	}
	return lease.Milliseconds()
}

// Resume continues a replay that no process runs.
func (s *Replays) Resume(ctx context.Context, act operate.Act, id int64, progress func(operate.Report)) (operate.Replay, error) {
	if err := act.Validate(); err != nil {
		return operate.Replay{}, err
	}
	r, err := s.Restart(ctx, act, id)
	if err != nil {
		return operate.Replay{}, err
	}
	return s.run(ctx, r, progress)
}

// Restart takes the lease of a replay that no process runs, but replays nothing.
func (s *Replays) Restart(ctx context.Context, act operate.Act, id int64) (*Replay, error) {
	r, err := s.get(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case r.Source != s.source.Name:
		return nil, fmt.Errorf("replay %d is of source %q, not %q", id, r.Source, s.source.Name)
	case r.State == operate.ReplayFinished:
		return nil, fmt.Errorf("%w: %d", operate.ErrReplayFinished, id)
	case r.State == operate.ReplayStopped: // messages that were replayed before the stop may have failed after it
		r.knownFailures = r.Failed
	}
	r.Act, r.token = act, uuid.NewString()
	err = s.alone(ctx, r.Consumer, id, func(tx *sql.Tx) error {
		resumed, err := dialect.Affected(tx.ExecContext(ctx, s.sql.resume, id, r.token, s.lease(r.Plan), r.knownFailures))
		if err != nil {
			return err
		}
		if resumed == 0 {
			return fmt.Errorf("%w: %d", operate.ErrReplayRunning, id)
		}
		failpoint.Hit("replay/resume")
		return AuditReplay(ctx, tx, s.db.Dialect, act.Actor, act.Why, "resume", id)
	})
	if err != nil {
		return nil, err
	}
	return s.Reload(ctx, r)
}

// alone calls start in a transaction that keeps other replays from beginning. It returns
// [operate.ErrReplayRunning] if another one than self is running, and a consumer has one at a time.
func (s *Replays) alone(ctx context.Context, consumer string, self int64, start func(tx *sql.Tx) error) error {
	return s.db.Write(ctx, func(tx *sql.Tx) error {
		if !s.source.Outcomes {
			return start(tx)
		}
		if s.sql.lock != "" {
			if _, err := tx.ExecContext(ctx, s.sql.lock); err != nil {
				return err
			}
		}
		var other int64
		err := tx.QueryRowContext(ctx, s.sql.running, parkedrows.Clean(consumer, parkedrows.MaxName), self).Scan(&other)
		switch {
		case err == nil:
			return fmt.Errorf("%w: %d", operate.ErrReplayRunning, other)
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		return start(tx)
	})
}

// Renew extends the lease and returns the state of the replay. A lease that has ended is taken
// again, unless another replay has begun.
func (s *Replays) Renew(ctx context.Context, r *Replay) (*Replay, error) {
	err := s.db.Write(ctx, func(tx *sql.Tx) error { return s.extend(ctx, tx, r) })
	if errors.Is(err, operate.ErrReplayLost) {
		err = s.alone(ctx, r.Consumer, r.ID, func(tx *sql.Tx) error {
			return lostUnless(dialect.Affected(tx.ExecContext(ctx, s.sql.retake, r.ID, r.token, s.lease(r.Plan))))
		})
		if errors.Is(err, operate.ErrReplayRunning) {
			err = fmt.Errorf("%w: %w", operate.ErrReplayLost, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("replay %d: %w", r.ID, err)
	}
	if !s.source.Outcomes {
		return r, nil
	}
	now, err := s.readOutcomes(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("look at replay %d: %w", r.ID, err)
	}
	return now, nil
}

func (s *Replays) extend(ctx context.Context, tx *sql.Tx, r *Replay) error {
	return lostUnless(dialect.Affected(tx.ExecContext(ctx, s.sql.extend, r.ID, r.token, s.lease(r.Plan))))
}

// Without the lease, a statement changes no row.
func lostUnless(changed int64, err error) error {
	if err == nil && changed == 0 {
		err = operate.ErrReplayLost
	}
	return err
}

// Advance replays up to n more messages, and stores the progress in the same transaction, so that
// none is replayed twice. It returns their number, and whether more may remain.
func (s *Replays) Advance(ctx context.Context, r *Replay, n int) (replayed int, more bool, err error) {
	var (
		after          int64
		taken, skipped []int64
	)
	err = s.db.Write(ctx, func(tx *sql.Tx) error {
		after, taken, skipped = 0, nil, nil
		err := s.extend(ctx, tx, r)
		if err == nil {
			after, taken, skipped, err = s.source.Take(ctx, tx, r, n)
		}
		if err != nil || after == 0 {
			return err
		}
		failpoint.Hit("replay/released")
		_, err = tx.ExecContext(ctx, s.sql.advance, r.ID, after, len(taken), s.lease(r.Plan))
		failpoint.Hit("replay/advance")
		return err
	})
	failpoint.Hit("replay/advanced")
	if err != nil {
		return 0, false, fmt.Errorf("replay %d: %w", r.ID, err)
	}
	if after == 0 {
		return 0, false, nil
	}
	r.AfterID = after
	r.Skipped = append(r.Skipped, skipped...)
	if s.source.Outcomes {
		r.outcomes.addWaiting(taken)
	} else {
		r.Changed += len(taken)
	}
	if s.source.Taken != nil {
		s.source.Taken(len(taken))
	}
	return len(taken), true, nil
}

// A pause has a row in the audit log. Stop writes that of an operator.
func (s *Replays) end(ctx context.Context, r *Replay, state, reason string) (*Replay, error) {
	err := s.db.Write(ctx, func(tx *sql.Tx) error {
		changed, err := dialect.Affected(tx.ExecContext(ctx, s.sql.end,
			r.ID, r.token, state, parkedrows.Clean(reason, parkedrows.MaxError), r.Resolved, r.Failed, r.Stale))
		failpoint.Hit("replay/end")
		if err = lostUnless(changed, err); err != nil || state != operate.ReplayPaused {
			return err
		}
		return auditPause(ctx, tx, s.db.Dialect, r.Act, reason, r.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("replay %d: %w", r.ID, err)
	}
	return s.Reload(ctx, r)
}

// Reload returns the state of a replay that this process runs, even if ctx has ended. Otherwise one
// that has just begun would not be paused, and one that has just finished would return an error.
func (s *Replays) Reload(ctx context.Context, r *Replay) (*Replay, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()
	now, err := s.get(ctx, r.ID)
	if err != nil {
		return r, err
	}
	now.Act, now.token, now.Skipped = r.Act, r.token, r.Skipped
	return now, nil
}

// Stop stops a running replay of any source, and returns its state. A batch, and the end of the
// replay, lock its row until their commit, so whichever comes second finds it changed.
func (s *Replays) Stop(ctx context.Context, act operate.Act, id int64) (operate.Replay, error) {
	if err := act.Validate(); err != nil {
		return operate.Replay{}, err
	}
	reason := "by " + act.Actor
	if act.Why != "" {
		reason += ": " + act.Why
	}
	err := s.db.Write(ctx, func(tx *sql.Tx) error {
		changed, err := dialect.Affected(tx.ExecContext(ctx, s.sql.stop, id, parkedrows.Clean(reason, parkedrows.MaxError)))
		if err != nil || changed == 0 { // not running
			return err
		}
		failpoint.Hit("replay/stop")
		return AuditReplay(ctx, tx, s.db.Dialect, act.Actor, act.Why, "stop", id)
	})
	failpoint.Hit("replay/stopped")
	if err != nil {
		return operate.Replay{}, err
	}
	r, err := s.Get(ctx, id)
	if err == nil && r.State == operate.ReplayFinished {
		return operate.Replay{}, fmt.Errorf("%w: %d", operate.ErrReplayFinished, id)
	}
	return r, err
}
