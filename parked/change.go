package parked

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/operate"
)

// RunNow makes waiting messages due now, in one transaction. Their attempts are not
// reset. A message that is due already stays so. If a message is held ([ErrHeld]),
// claimed ([ErrClaimed]), in another state ([ErrEnded]) or does not exist
// ([ErrNotFound]), RunNow changes none. A running consumer finds the messages within
// retry.Config.PollInterval.
func (m *Messages) RunNow(ctx context.Context, act Act, ids ...int64) error {
	return m.changeNamed(ctx, RunNow, act, act.Validate(), ids)
}

// Cancel moves waiting and held messages into quarantine in one transaction, with the
// reason "cancelled" and with Act.Why, which is required, in their error. Package poison
// can replay, edit and discard them there. They leave their places in the order of their
// ordering keys, and the messages that wait for them go on, also with
// retry.BlockWhileQuarantined.
//
// If a message is claimed ([ErrClaimed]), was handled ([ErrHandled]), is in another
// state ([ErrEnded]) or does not exist ([ErrNotFound]), Cancel changes none. A cancelled
// message does not run from its row. A copy that the transport delivers later does run,
// as for every message in quarantine: Discard prevents that.
func (m *Messages) Cancel(ctx context.Context, act Act, ids ...int64) error {
	return m.changeNamed(ctx, Cancel, act, act.ValidateLoss(), ids)
}

// Discard ends waiting and held messages for good, in one transaction. Their rows stay
// readable until dedup's retention, and the inbox counts the messages as handled, so
// that no copy runs. The messages that wait for them go on. It fails as
// [Messages.Cancel] does.
func (m *Messages) Discard(ctx context.Context, act Act, ids ...int64) error {
	return m.changeNamed(ctx, Discard, act, act.ValidateLoss(), ids)
}

func (m *Messages) changeNamed(ctx context.Context, do Action, act Act, err error, ids []int64) error {
	if err == nil {
		ids, err = operate.Distinct(ids)
	}
	if err == nil {
		_, err = m.changeBatch(ctx, do, act, ids, func(found []candidate) error {
			for i, id := range ids {
				if i >= len(found) || found[i].id != id {
					return about(id, ErrNotFound)
				}
				if err := found[i].problem(do); err != nil {
					return about(id, err)
				}
			}
			return nil
		})
	}
	if err != nil && contended(err) {
		err = fmt.Errorf("%w: %w", ErrClaimed, err)
	}
	if err != nil {
		return fmt.Errorf("parked: %s: %w", do, err)
	}
	return nil
}

// contended reports whether a statement waited too long for another transaction: for a
// handler that has the message or a copy of it, as a rule.
func contended(err error) bool {
	const lockTimeout, deadlock = "55P03", "40P01"
	return slices.Contains([]string{lockTimeout, deadlock}, dialect.State(err))
}

// problem returns why the action cannot change the message, or nil.
func (c candidate) problem(do Action) error {
	switch {
	case c.state != Waiting && c.state != Held:
		return fmt.Errorf("%w, but %s", ErrEnded, c.state)
	case c.busy, c.claimed:
		return ErrClaimed
	case do == RunNow && c.state == Held:
		return ErrHeld
	case do != RunNow && c.handled:
		return ErrHandled
	}
	return nil
}

// changeBatch changes messages in one transaction. check may refuse to change any. The
// messages that have a problem are not changed.
func (m *Messages) changeBatch(
	ctx context.Context, do Action, act Act, ids []int64, check func(found []candidate) error,
) (report Report, err error) {
	work := func(tx *sql.Tx) error {
		report = Report{}
		found, err := m.candidates(ctx, tx, ids)
		if err != nil {
			return err
		}
		failpoint.Hit("parked/candidates-locked")
		if do != RunNow {
			if err := m.settleInbox(ctx, tx, do, found); err != nil {
				return err
			}
		}
		if err := check(found); err != nil {
			return err
		}
		var chosen []candidate
		for _, c := range found {
			if report.count(do, c) {
				chosen = append(chosen, c)
			}
		}
		if len(chosen) == 0 {
			return nil
		}
		return m.apply(ctx, tx, do, act, chosen)
	}
	if do == RunNow {
		err = m.write(ctx, func(tx *sql.Tx) error { return m.impatient(ctx, tx, work) })
	} else {
		err = dialect.LeaveReplica(ctx, m.db, m.store.ReplaceHeads(ctx, func(*sql.Tx) ([]int64, error) { return ids, nil },
			func(tx *sql.Tx) error { return m.impatient(ctx, tx, work) }))
	}
	if err != nil {
		return Report{}, err
	}
	failpoint.Hit("parked/operated")
	return report, nil
}

// impatient runs work so that with PostgreSQL a statement that waits longer than a
// second for a lock fails: other transactions wait for the locks of work.
func (m *Messages) impatient(ctx context.Context, tx *sql.Tx, work func(tx *sql.Tx) error) error {
	if !m.dialect.SQLite() {
		if _, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = 1000`); err != nil {
			return err
		}
	}
	return work(tx)
}

// count adds a message to the report, and reports whether to change it.
func (r *Report) count(do Action, c candidate) bool {
	switch {
	case c.state != Waiting && c.state != Held, do == RunNow && (c.state == Held || !c.later):
		return false
	case c.busy, c.claimed:
		r.Skipped = append(r.Skipped, c.id)
		return false
	case do != RunNow && c.handled:
		r.Handled = append(r.Handled, c.id)
		return false
	}
	r.Changed++
	if c.abandoned {
		r.Abandoned = append(r.Abandoned, c.id)
	}
	return true
}
