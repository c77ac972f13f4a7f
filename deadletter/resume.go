package deadletter

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/operate"
)

// endTimeout is the timeout of the statement that records the end of a replay.
const endTimeout = 10 * time.Second

// run is the row of a replay that this process runs. The zero value means an operation
// without a row.
type run struct {
	id    int64
	token string
	lease int64 // lease after each batch, in milliseconds
}

// replayMatching works like changeMatching, for a replay. It also stores the progress
// of the replay in the table of replays. If no row matches, it stores nothing there.
func (t table) replayMatching(ctx context.Context, act Act, f Filter, op operation) (Report, error) {
	if err := errors.Join(act.Validate(), t.validateChange(f), validate(op.Plan)); err != nil {
		return Report{}, err
	}
	n, last, err := t.count(ctx, f)
	switch {
	case err != nil:
		return Report{}, err
	case n == 0 && f.Fingerprint != "": // the fingerprint is probably misspelt
		return Report{}, fmt.Errorf("failure group %q: %w", f.Fingerprint, ErrNotFound)
	case n == 0:
		return Report{State: operate.ReplayFinished}, nil
	}
	report := Report{Total: n}
	if f.Limit > 0 {
		report.Total = min(n, f.Limit)
	}
	if op.run, err = t.begin(ctx, act, f, op.Plan, report.Total, last); err != nil {
		return Report{}, err
	}
	return t.runReplay(ctx, f, op, last, report)
}

// resume continues the replay with this ID after its last committed batch.
func (t table) resume(ctx context.Context, act Act, id int64, progress func(Report), replay func(Act, Plan) operation) (Report, error) {
	if err := act.Validate(); err != nil {
		return Report{}, err
	}
	f, plan, last, report, err := t.replayRow(ctx, id)
	if err != nil {
		return Report{}, err
	}
	plan.Progress = progress
	op := replay(act, plan)
	op.run = run{id: id, token: uuid.NewString(), lease: t.lease(plan)}
	err = t.write(ctx, func(tx *sql.Tx) error {
		taken, err := dialect.Affected(tx.ExecContext(ctx, t.dialect.SQL(`
			UPDATE {replays} SET state = 'running', stop_reason = '', ended_at = NULL, token = $2, lease_until = {after $3}
			WHERE id = $1 AND state <> 'finished' AND (state <> 'running' OR lease_until <= {now})`),
			id, op.run.token, op.run.lease))
		if err != nil {
			return err
		}
		if taken == 0 {
			return fmt.Errorf("%w: %d", operate.ErrReplayRunning, id)
		}
		return t.audit(ctx, tx, act, "resume", id, []string{"replay:" + strconv.FormatInt(id, 10)}, []string{""})
	})
	if err != nil {
		return Report{}, err
	}
	return t.runReplay(ctx, f, op, last, report)
}

// runReplay replays the remaining rows, and records how the replay ended.
func (t table) runReplay(ctx context.Context, f Filter, op operation, last int64, report Report) (Report, error) {
	report.ID, report.State = op.run.id, operate.ReplayRunning
	report, err := t.changeUntil(ctx, f, op, last, report)
	reason := ""
	switch {
	case errors.Is(err, operate.ErrReplayStopped):
		report.State = operate.ReplayStopped
		return report, err
	case errors.Is(err, operate.ErrReplayLost):
		return report, err
	case err == nil:
		report.State = operate.ReplayFinished
	case ctx.Err() != nil:
		report.State, reason = operate.ReplayPaused, "its context ended"
	default:
		report.State, reason = operate.ReplayPaused, "by an error"
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	endErr := t.write(end, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(end, t.dialect.SQL(`
			UPDATE {replays} SET state = $3, stop_reason = $4, token = NULL, lease_until = NULL, ended_at = {now}
			WHERE id = $1 AND token = $2`), op.run.id, op.run.token, report.State, reason)
		return err
	})
	if endErr != nil {
		err = errors.Join(err, fmt.Errorf("record the end of replay %d: %w", op.run.id, endErr))
	}
	return report, err
}

func (t table) begin(ctx context.Context, act Act, f Filter, plan Plan, total int, last int64) (run, error) {
	filter, err := json.Marshal(f)
	if err != nil {
		return run{}, err
	}
	planned, err := json.Marshal(plan)
	if err != nil {
		return run{}, err
	}
	r := run{token: uuid.NewString(), lease: t.lease(plan)}
	err = t.write(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, t.dialect.SQL(`
			INSERT INTO {replays} (source, consumer, filter, plan, actor, why, state, total, until_id, token, lease_until)
			VALUES ($1, '', $2, $3, $4, $5, 'running', $6, $7, $8, {after $9}) RETURNING id`),
			t.subject, string(filter), string(planned), parked.Clean(act.Actor, parked.MaxName), parked.Clean(act.Why, parked.MaxError),
			total, last, r.token, r.lease).Scan(&r.id)
	})
	failpoint.Hit("deadletter/replay-begun")
	return r, err
}

// replayRow reads the row of a replay that can be resumed: its filter, its plan, the ID
// of the last row that it may replay, and the number of messages that it has replayed
// so far.
func (t table) replayRow(ctx context.Context, id int64) (f Filter, plan Plan, last int64, report Report, err error) {
	var source, state, filter, planned string
	var after int64
	err = t.read(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, t.dialect.SQL(
			`SELECT source, state, filter, plan, until_id, after_id, total, replayed FROM {replays} WHERE id = $1`), id).
			Scan(&source, &state, &filter, &planned, &last, &after, &report.Total, &report.Replayed)
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		err = fmt.Errorf("%w: %d", operate.ErrReplayNotFound, id)
	case err != nil:
	case source != t.subject:
		err = fmt.Errorf("replay %d is of source %q, not %q", id, source, t.subject)
	case state == operate.ReplayFinished:
		err = fmt.Errorf("%w: %d", operate.ErrReplayFinished, id)
	default:
		err = errors.Join(json.Unmarshal([]byte(filter), &f), json.Unmarshal([]byte(planned), &plan))
	}
	f.AfterID = max(f.AfterID, after)
	return f, plan, last, report, err
}

// advance stores the progress of a replay in the transaction of a batch, so that no
// message is replayed twice. It returns an error if the replay was stopped, or if
// another process has continued the replay.
func (t table) advance(ctx context.Context, tx *sql.Tx, r run, after int64, replayed int) error {
	if r.id == 0 {
		return nil
	}
	changed, err := dialect.Affected(tx.ExecContext(ctx, t.dialect.SQL(`
		UPDATE {replays} SET after_id = $3, replayed = replayed + $4, lease_until = {after $5} WHERE id = $1 AND token = $2`),
		r.id, r.token, after, replayed, r.lease))
	failpoint.Hit("deadletter/replay-advanced")
	if err != nil || changed > 0 {
		return err
	}
	var state, reason string
	err = tx.QueryRowContext(ctx, t.dialect.SQL(`SELECT state, stop_reason FROM {replays} WHERE id = $1`), r.id).Scan(&state, &reason)
	if err == nil && state == operate.ReplayStopped {
		return fmt.Errorf("%w: %s", operate.ErrReplayStopped, reason)
	}
	return errors.Join(operate.ErrReplayLost, err)
}
