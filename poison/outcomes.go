package poison

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
)

// outcomes counts the replayed entries by their outcome, as far as this process knows
// it. Each update queries only the entries that were waiting at the previous update, so
// an update does not take longer when more entries are settled.
type outcomes struct {
	known    int     // number of counted entries: the entries below and the failed entries
	resolved int     // number of handled entries
	stale    int     // number of entries that are in quarantine again because their version is stale
	waiting  []int64 // IDs of entries that still wait
}

// stale is the value that the query returns in place of a state, for an entry whose
// version is stale.
const stale = "stale"

// addWaiting adds the IDs of entries that have just begun to wait.
func (o *outcomes) addWaiting(ids []int64) {
	o.known += len(ids)
	o.waiting = append(o.waiting, ids...)
}

// readOutcomes returns the current state of a replay that this process runs.
func (t *table) readOutcomes(ctx context.Context, r *leasedReplay) (now *leasedReplay, err error) {
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		now, err = scanReplay(tx.QueryRowContext(ctx, t.sql.replays.row, r.ID))
		if err != nil {
			return err
		}
		now.act, now.token, now.outcomes = r.act, r.token, r.outcomes
		if now.outcomes.known == now.Replayed {
			err = t.updateOutcomes(ctx, tx, now)
		} else { // the replay was resumed, or a commit with an unknown outcome has succeeded
			err = t.countOutcomes(ctx, tx, now)
		}
		now.Resolved, now.Stale, now.Waiting = now.outcomes.resolved, now.outcomes.stale, len(now.outcomes.waiting)
		now.Failed = now.Replayed - now.Resolved - now.Stale - now.Waiting
		return err
	})
	return now, err
}

// updateOutcomes queries the entries that were waiting at the previous update.
func (t *table) updateOutcomes(ctx context.Context, tx *sql.Tx, r *leasedReplay) error {
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
		case parked.Waiting:
			waiting = append(waiting, id)
		case parked.Resolved:
			r.outcomes.resolved++
		case stale:
			r.outcomes.stale++
		}
		return err
	}, t.sql.replays.outcomes, t.dialect.List(r.outcomes.waiting), r.ID)
	r.outcomes.waiting = waiting
	return err
}

// countOutcomes counts the outcomes of all entries of the replay.
func (t *table) countOutcomes(ctx context.Context, tx *sql.Tx, r *leasedReplay) error {
	r.outcomes = outcomes{known: r.Replayed}
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
	}, t.sql.replays.count, r.ID)
}
