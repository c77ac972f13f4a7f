package parked

import (
	"context"
	"database/sql"
)

// outcomes is what has become of the entries that a replay has given back, as
// far as whoever runs it has seen. Each look asks for those that waited at the
// last one, and not again for all that are done.
type outcomes struct {
	given    int64 // entries, of which it knows
	resolved int64
	waiting  []int64 // ids; of what is neither, the entry failed
}

// gave adds entries that wait from now on.
func (o *outcomes) gave(ids []int64) {
	o.given += int64(len(ids))
	o.waiting = append(o.waiting, ids...)
}

// look returns a replay as it is now, for who runs it.
func (s *Store) look(ctx context.Context, r *Replay) (now *Replay, err error) {
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		now, err = scanReplay(tx.QueryRowContext(ctx, s.sql.replays.row, r.ID))
		if err != nil {
			return err
		}
		now.act, now.token, now.seen = r.act, r.token, r.seen
		if now.seen.given == now.Replayed {
			err = s.lookAgain(ctx, tx, now)
		} else { // it was resumed, or a commit of unknown outcome took place
			err = s.count(ctx, tx, now)
		}
		now.Resolved, now.Waiting = now.seen.resolved, int64(len(now.seen.waiting))
		now.Failed = now.Replayed - now.Resolved - now.Waiting
		return err
	})
	return now, err
}

// lookAgain asks for the entries that waited.
func (s *Store) lookAgain(ctx context.Context, tx *sql.Tx, r *Replay) error {
	if len(r.seen.waiting) == 0 {
		return nil
	}
	var waiting []int64
	err := eachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			id    int64
			state string
		)
		err := scan(&id, &state)
		switch state {
		case Waiting:
			waiting = append(waiting, id)
		case Resolved:
			r.seen.resolved++
		}
		return err
	}, s.sql.replays.outcomes, s.dialect.List(r.seen.waiting), r.ID)
	r.seen.waiting = waiting
	return err
}

// count asks for all that the replay has given back.
func (s *Store) count(ctx context.Context, tx *sql.Tx, r *Replay) error {
	r.seen = outcomes{given: r.Replayed}
	return eachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var id, resolved int64
		err := scan(&id, &resolved)
		if r.seen.resolved += resolved; id > 0 {
			r.seen.waiting = append(r.seen.waiting, id)
		}
		return err
	}, s.sql.replays.count, r.ID)
}
