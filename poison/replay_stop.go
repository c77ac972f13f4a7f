package poison

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
)

// StopReplay stops a running replay, and returns its state. The process that runs the
// replay may be another one, or may have died. Messages that were already replayed are
// still handled. After StopReplay has returned, no further message is replayed. The
// process that runs the replay notices the stop before its next batch, and its
// ReplayMatching or Resume returns [ErrReplayStopped].
//
// [Quarantine.Resume] continues the replay. StopReplay does not change a replay that is
// paused or was stopped before. It returns [ErrReplayNotFound] if no replay has this
// ID, and [ErrReplayFinished] if the replay has finished.
func (q *Quarantine) StopReplay(ctx context.Context, act Act, id int64) (Replay, error) {
	err := act.Validate()
	if err == nil {
		err = q.table.stopReplay(ctx, act, id)
	}
	failpoint.Hit("replay/stopped")
	var r *leasedReplay
	if err == nil {
		r, err = q.table.replayOf(ctx, id)
	}
	if err == nil && r.State == ReplayFinished {
		err = fmt.Errorf("%w: %d", ErrReplayFinished, id)
	}
	if err != nil {
		return Replay{}, fmt.Errorf("poison: stop: %w", err)
	}
	return r.Replay, nil
}

// stopReplay changes the row of the replay if the replay runs or is abandoned. The
// transaction of a batch, and the transaction that ends the replay, lock this row until
// their commit. So either the stop or the other transaction comes first, and the second
// one finds that the row has changed.
func (t *table) stopReplay(ctx context.Context, act Act, id int64) error {
	reason := "by " + act.Actor
	if act.Why != "" {
		reason += ": " + act.Why
	}
	return t.dialect.Write(ctx, t.db, func(tx *sql.Tx) error {
		changed, err := dialect.Affected(tx.ExecContext(ctx, t.sql.replays.stop, id, parked.Clean(reason, parked.MaxError)))
		if err != nil || changed == 0 { // not running
			return err
		}
		failpoint.Hit("replay/stop")
		_, err = tx.ExecContext(ctx, t.sql.replays.auditStop,
			parked.Clean(act.Actor, parked.MaxName), parked.Clean(act.Why, parked.MaxError), id)
		return err
	})
}

// stopped returns [ErrReplayStopped] if err is [ErrReplayLost] because an operator has
// stopped the replay. It returns any other error unchanged.
func (x *replayRun) stopped(ctx context.Context, err error) error {
	if !errors.Is(err, ErrReplayLost) {
		return err
	}
	now, readErr := x.table.reload(ctx, x.replay)
	if readErr != nil || now.State != ReplayStopped {
		return err
	}
	x.replay = now
	x.progress(now.Report)
	return fmt.Errorf("%w: %s", ErrReplayStopped, now.StopReason)
}
