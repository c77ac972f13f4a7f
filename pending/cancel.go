package pending

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/operate"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parked"
)

// Cancel moves messages to the dead letters in one transaction. The reason of these
// dead letters is "cancelled", and their error is Act.Why, which is required. Messages
// that wait behind a cancelled message are then sent. If a message does not exist
// ([ErrNotFound]) or a forwarder may be sending it ([ErrNeedsForce]), Cancel moves no
// message.
//
// After Cancel has returned, a cancelled message is not sent. There is one exception:
// if the error wraps [ErrMaybeSent], the messages were moved too late, and may also
// have been sent.
func (m *Messages) Cancel(ctx context.Context, act Act, ids ...int64) error {
	err := act.ValidateLoss()
	if err == nil {
		ids, err = operate.Distinct(ids)
	}
	if err == nil {
		_, err = m.cancelBatch(ctx, act, ids, func(found []candidate) ([]candidate, error) {
			for i, id := range ids {
				if i == len(found) || found[i].id != id {
					return nil, notFound(id)
				}
				if found[i].busy || !found[i].unread {
					return nil, fmt.Errorf("message %d: %w", id, ErrNeedsForce)
				}
			}
			return found, nil
		})
	}
	if err != nil {
		return fmt.Errorf("pending: cancel: %w", err)
	}
	return nil
}

// CancelMatching moves the messages that match f to the dead letters, as
// [Messages.Cancel] does, in several transactions. It skips messages whose outcome a
// forwarder is recording. It also skips messages that a forwarder may be sending, but
// with Plan.Force it cancels them. It ignores messages that are written while it runs.
// When ctx ends, it stops after the current batch. It returns a Report even with an
// error. The Report does not count a batch whose commit has an unknown outcome.
func (m *Messages) CancelMatching(ctx context.Context, act Act, f Filter, plan Plan) (Report, error) {
	var report Report
	err := validateChange(act.ValidateLoss(), f, plan)
	if err == nil {
		err = m.eachBatch(ctx, f, plan, batchRows, &report, func(ids []int64, report *Report) error {
			var skipped []int64
			n, err := m.cancelBatch(ctx, act, ids, func(found []candidate) (chosen []candidate, err error) {
				chosen, skipped = plan.choose(found)
				return chosen, nil
			})
			if err == nil || errors.Is(err, ErrMaybeSent) {
				report.Changed += n
				report.Skipped = append(report.Skipped, skipped...)
			}
			return err
		})
	}
	if err != nil {
		return report, fmt.Errorf("pending: cancel: %w", err)
	}
	return report, nil
}

// DryRun reports which messages CancelMatching would cancel and skip now with the same
// Filter and Plan. It changes nothing.
func (m *Messages) DryRun(ctx context.Context, f Filter, plan Plan) (Report, error) {
	var report Report
	plan.Rate, plan.Progress = 0, nil
	err := f.validateChange()
	if err == nil {
		err = m.eachBatch(ctx, f, plan, dryRunRows, &report, func(ids []int64, report *Report) error {
			return m.read(ctx, func(tx *sql.Tx) error {
				b, err := m.barriers(ctx, tx, ids, false)
				if err != nil {
					return err
				}
				found, err := m.candidates(ctx, tx, ids, b, false)
				if err != nil {
					return err
				}
				chosen, skipped := plan.choose(found)
				report.Changed += len(chosen)
				report.Skipped = append(report.Skipped, skipped...)
				return nil
			})
		})
	}
	if err != nil {
		return Report{}, fmt.Errorf("pending: dry run: %w", err)
	}
	return report, nil
}

func validateChange(act error, f Filter, plan Plan) error {
	return errors.Join(act, f.validateChange(), plan.validate())
}

// choose returns the messages to cancel with this plan, and the IDs of the messages to
// skip.
func (p Plan) choose(found []candidate) (chosen []candidate, skipped []int64) {
	for _, c := range found {
		if !c.busy && (c.unread || p.Force) {
			chosen = append(chosen, c)
		} else {
			skipped = append(skipped, c.id)
		}
	}
	return chosen, skipped
}

// cancelBatch cancels the messages that the function choose returns, in one
// transaction. It returns the number of cancelled messages.
func (m *Messages) cancelBatch(
	ctx context.Context, act Act, ids []int64, choose func(found []candidate) ([]candidate, error),
) (n int, err error) {
	began := time.Now() // before the transaction: notYet compares with the clock at its beginning
	hurry := false
	err = m.write(ctx, func(tx *sql.Tx) error {
		b, err := m.barriers(ctx, tx, ids, true)
		if err != nil {
			return err
		}
		failpoint.Hit("pending/barriers-locked")
		found, err := m.candidates(ctx, tx, ids, b, true)
		if err != nil {
			return err
		}
		chosen, err := choose(found)
		n, hurry = len(chosen), false
		if err != nil || n == 0 {
			return err
		}
		for _, c := range chosen {
			hurry = hurry || c.later
		}
		if err := m.bury(ctx, tx, act, chosen); err != nil {
			return err
		}
		if hurry && time.Since(began) > margin/2 {
			return fmt.Errorf("it took %v to lock and change the rows, and a message may become due before the commit: try again",
				time.Since(began).Round(time.Millisecond))
		}
		return nil
	})
	failpoint.Hit("pending/cancelled")
	if took := time.Since(began); err == nil && hurry && took > margin {
		err = fmt.Errorf("%w: %v, with %d messages from %d", ErrMaybeSent, took.Round(time.Millisecond), n, ids[0])
	}
	return n, err
}

// bury moves messages to the dead letters, and unblocks the messages that wait behind
// them.
func (m *Messages) bury(ctx context.Context, tx *sql.Tx, act Act, chosen []candidate) error {
	var (
		ids, heads       []int64
		messageIDs, keys []string
	)
	for _, c := range chosen {
		ids, messageIDs = append(ids, c.id), append(messageIDs, c.messageID)
		if c.head {
			heads, keys = append(heads, c.id), append(keys, c.key)
		}
	}
	d := m.dialect
	labels, join := outboxrow.Labels(d)
	text := parked.Clean("cancelled by "+act.Actor+": "+act.Why, parked.MaxError)
	for _, step := range []struct {
		query string
		args  []any
	}{
		// A message that has been due may have been sent by a forwarder that died before
		// it recorded the outcome. This is possible even if the broker has refused the
		// message since.
		{`INSERT INTO {outbox_dead} (position, message_id, topic, ordering_key, payload, metadata, created_at,
		                             attempts, last_error, reason, unknown, ` + outboxrow.LabelColumns + `)
		  SELECT o.position, o.message_id, o.topic, o.ordering_key, o.payload, o.metadata, o.created_at, o.attempts,
		         CASE WHEN o.last_error IS NULL THEN $2 ELSE $2 || '; last error: ' || o.last_error END,
		         '` + outboxrow.DeadCancelled + `', o.unknown OR o.failing_since IS NOT NULL OR NOT ` + notYet + `, ` + labels + `
		  FROM {outbox} AS o` + join + ` WHERE o.position {among $1 bigint} ORDER BY o.position`, []any{d.List(ids), text}},
		{`DELETE FROM {outbox} WHERE position {among $1 bigint}`, []any{d.List(ids)}},
	} {
		if _, err := tx.ExecContext(ctx, d.SQL(step.query), step.args...); err != nil {
			return err
		}
		failpoint.Hit("pending/burying")
	}
	if len(heads) > 0 {
		// First mark the head as a dead letter that blocks its key, because Unblock unblocks
		// only such keys.
		_, err := tx.ExecContext(ctx, d.SQL(`UPDATE {blocked_keys} AS b SET reason = '`+outboxrow.BlockedDead+`'
			WHERE (b.position, b.ordering_key) IN (SELECT c.position, c.ordering_key FROM `+
			d.Columns("position bigint", "ordering_key text")+`)`), d.List(heads), d.Strings(keys))
		if err != nil {
			return err
		}
	}
	if err := operate.Unblock(ctx, tx, d, heads, keys); err != nil {
		return err
	}
	return m.audit(ctx, tx, act, "cancel", ids, messageIDs)
}
