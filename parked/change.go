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

// RunNow makes waiting messages due immediately, in one transaction. It does not reset
// their attempts. A message that is already due keeps its due time. If a message is
// held ([ErrHeld]), claimed ([ErrClaimed]), in another state ([ErrEnded]) or does not
// exist ([ErrNotFound]), RunNow changes no message. A running consumer finds the
// messages within retry.Config.PollInterval.
func (m *Messages) RunNow(ctx context.Context, act Act, ids ...int64) error {
	return m.changeNamed(ctx, RunNow, act, act.Validate(), ids)
}

// Cancel moves waiting and held messages into quarantine in one transaction. The reason
// of the entries is "cancelled", and their error contains Act.Why, which is required.
// Package poison can replay, edit and discard the entries. A cancelled message leaves its
// place in the order of its ordering key: the messages that wait for it continue, even
// with retry.BlockWhileQuarantined.
//
// If a message is claimed ([ErrClaimed]), was handled ([ErrHandled]), is in another state
// ([ErrEnded]) or does not exist ([ErrNotFound]), Cancel changes no message. The handler
// is not called for a cancelled message. But if the transport delivers a copy later, the
// handler is called for the copy, as for a copy of any message in quarantine. Discard
// prevents this.
func (m *Messages) Cancel(ctx context.Context, act Act, ids ...int64) error {
	return m.changeNamed(ctx, Cancel, act, act.ValidateLoss(), ids)
}

// Discard ends waiting and held messages for good, in one transaction. You can read
// their rows until dedup's retention has passed. Discard also inserts their ids into
// the inbox, so that the handler is not called for a copy. Messages that wait for a
// discarded message continue. Discard returns the same errors as [Messages.Cancel].
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

// contended reports whether err means that a statement waited too long for another
// transaction. Usually that transaction belongs to a handler that is handling the
// message or a copy of it.
func contended(err error) bool {
	const lockTimeout, deadlock = "55P03", "40P01"
	return slices.Contains([]string{lockTimeout, deadlock}, dialect.State(err))
}

// problem returns why the action cannot change the message, or nil if it can.
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

// changeBatch changes messages in one transaction. It skips messages that have a
// problem. If check returns an error, changeBatch changes no message.
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

// impatient calls f. With PostgreSQL, a statement of f fails if it waits longer than a
// second for a lock. A longer wait would do harm, because other transactions wait for
// the locks that f has taken before.
func (m *Messages) impatient(ctx context.Context, tx *sql.Tx, f func(tx *sql.Tx) error) error {
	if !m.dialect.SQLite() {
		if _, err := tx.ExecContext(ctx, `SET LOCAL lock_timeout = 1000`); err != nil {
			return err
		}
	}
	return f(tx)
}

// count adds a message to the report. It returns true if the message must be changed.
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
