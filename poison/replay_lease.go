package poison

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
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/operate"
)

// leasedReplay is a replay that this process runs. The process has the lease as long as
// the row of the replay contains the token of this process.
type leasedReplay struct {
	Replay

	act     Act // act that began or resumed the current run
	token   string
	afterID int64 // ID of the last replayed entry
	untilID int64 // ID of the last entry that matched when the replay began

	// knownFailures is the number of failures when the replay was last stopped or paused.
	// These failures do not stop the replay again.
	knownFailures int

	outcomes outcomes
}

func (r *leasedReplay) states() []string { return replayStates(r.Plan, r.Filter) }

// beginReplay inserts a replay of the entries that match now, and takes its lease. If no
// entry matches, it inserts nothing, and the replay has no ID.
func (t *table) beginReplay(ctx context.Context, act Act, f Filter, plan Plan, lease time.Duration) (*leasedReplay, error) {
	f = f.asStored() // JSON would change invalid UTF-8 in another way
	r := &leasedReplay{Replay: Replay{Consumer: f.Consumer, Filter: f, Plan: plan, Actor: act.Actor, Why: act.Why}}
	r.act, r.token = act, uuid.NewString()
	filterText, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	planText, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	where := t.where(f, r.states()...)
	size := t.dialect.SQL(`SELECT COUNT(*), COALESCE(MAX(id), 0) FROM (
		SELECT id FROM {parked} WHERE ` + where.String() + ` ORDER BY id LIMIT ` + where.Arg(f.limit()) + `) AS chosen`)
	// Counting many entries takes time, so it is done before the lock is taken.
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, size, where.Args...).Scan(&r.Total, &r.untilID)
	})
	if err != nil {
		return nil, fmt.Errorf("count the matching entries: %w", err)
	}
	switch {
	case r.Total == 0 && f.Fingerprint != "": // probably misspelt
		return nil, fmt.Errorf("%w in failure group %q", ErrNotFound, f.Fingerprint)
	case r.Total == 0:
		r.State = ReplayFinished
		return r, t.alone(ctx, f.Consumer, 0, func(*sql.Tx) error { return nil })
	}
	err = t.alone(ctx, f.Consumer, 0, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, t.sql.replays.insert, parked.Clean(f.Consumer, parked.MaxName), string(filterText), string(planText),
			parked.Clean(act.Actor, parked.MaxName), parked.Clean(act.Why, parked.MaxError),
			r.Total, r.untilID, r.token, lease.Milliseconds()).Scan(&r.ID)
		failpoint.Hit("replay/begin")
		return err
	})
	if err != nil {
		return nil, err
	}
	failpoint.Hit("replay/begun")
	return t.reload(ctx, r)
}

// resumeReplay takes the lease of a replay that no process runs.
func (t *table) resumeReplay(ctx context.Context, act Act, id int64, lease time.Duration) (*leasedReplay, error) {
	r, err := t.replayOf(ctx, id)
	if err != nil {
		return nil, err
	}
	if r.Source != operate.SourceQuarantine {
		return nil, fmt.Errorf("replay %d is of source %q: resume it with package deadletter", id, r.Source)
	}
	r.act, r.token = act, uuid.NewString()
	switch r.State {
	case ReplayFinished:
		return nil, fmt.Errorf("%w: %d", ErrReplayFinished, id)
	case ReplayStopped: // messages that were replayed before the stop may have failed after it
		r.knownFailures = r.Failed
	}
	err = t.alone(ctx, r.Consumer, id, func(tx *sql.Tx) error {
		resumed, err := dialect.Affected(tx.ExecContext(ctx, t.sql.replays.resume, id, r.token, lease.Milliseconds(), r.knownFailures))
		if err != nil {
			return err
		}
		if resumed == 0 {
			return fmt.Errorf("%w: %d", ErrReplayRunning, id)
		}
		failpoint.Hit("replay/resume")
		_, err = tx.ExecContext(ctx, t.sql.replays.auditResume,
			parked.Clean(act.Actor, parked.MaxName), parked.Clean(act.Why, parked.MaxError), id)
		return err
	})
	if err != nil {
		return nil, err
	}
	return t.reload(ctx, r)
}

// alone calls the function start in a transaction. If another replay of the consumer is
// running, it returns [ErrReplayRunning] instead. The replay with the ID self does not
// count. No other replay can begin until the transaction ends.
func (t *table) alone(ctx context.Context, consumer string, self int64, start func(tx *sql.Tx) error) error {
	return t.dialect.Write(ctx, t.db, func(tx *sql.Tx) error {
		if t.sql.replays.lock != "" {
			if _, err := tx.ExecContext(ctx, t.sql.replays.lock); err != nil {
				return err
			}
		}
		var other int64
		err := tx.QueryRowContext(ctx, t.sql.replays.running, parked.Clean(consumer, parked.MaxName), self).Scan(&other)
		switch {
		case err == nil:
			return fmt.Errorf("%w: %d", ErrReplayRunning, other)
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		return start(tx)
	})
}

// renewReplay extends the lease and returns the current state of the replay. If the
// lease has ended, renewReplay takes it again, unless another replay has begun in the
// meantime.
func (t *table) renewReplay(ctx context.Context, r *leasedReplay, lease time.Duration) (*leasedReplay, error) {
	err := t.dialect.Write(ctx, t.db, func(tx *sql.Tx) error { return t.extendReplay(ctx, tx, r, lease) })
	if errors.Is(err, ErrReplayLost) {
		err = t.alone(ctx, r.Consumer, r.ID, func(tx *sql.Tx) error {
			return lostUnless(dialect.Affected(tx.ExecContext(ctx, t.sql.replays.retake, r.ID, r.token, lease.Milliseconds())))
		})
		if errors.Is(err, ErrReplayRunning) {
			err = fmt.Errorf("%w: %w", ErrReplayLost, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("replay %d: %w", r.ID, err)
	}
	now, err := t.readOutcomes(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("look at replay %d: %w", r.ID, err)
	}
	return now, nil
}

func (t *table) extendReplay(ctx context.Context, tx *sql.Tx, r *leasedReplay, lease time.Duration) error {
	return lostUnless(dialect.Affected(tx.ExecContext(ctx, t.sql.replays.extend, r.ID, r.token, lease.Milliseconds())))
}

// lostUnless returns [ErrReplayLost] if changed is 0. The parameter changed is the
// number of rows that a statement has changed. The statement must change no row if this
// process does not have the lease.
func lostUnless(changed int64, err error) error {
	if err == nil && changed == 0 {
		err = ErrReplayLost
	}
	return err
}

// endReplay gives the lease back, and stores how the replay ended.
func (t *table) endReplay(ctx context.Context, r *leasedReplay, state, reason string) (*leasedReplay, error) {
	err := t.dialect.Write(ctx, t.db, func(tx *sql.Tx) error {
		changed, err := dialect.Affected(tx.ExecContext(ctx, t.sql.replays.end,
			r.ID, r.token, state, parked.Clean(reason, parked.MaxError), r.Resolved, r.Failed, r.Stale))
		failpoint.Hit("replay/end")
		return lostUnless(changed, err)
	})
	if err != nil {
		return nil, fmt.Errorf("replay %d: %w", r.ID, err)
	}
	return t.reload(ctx, r)
}

// reload returns the current state of a replay that this process runs.
func (t *table) reload(ctx context.Context, r *leasedReplay) (*leasedReplay, error) {
	now, err := t.replayOf(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	now.act, now.token = r.act, r.token
	return now, nil
}
