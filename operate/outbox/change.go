package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/outboxrow"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

// Cancel moves messages to the dead letters in one transaction, with the reason "cancelled" and the
// error Act.Why, which is required. Messages that wait behind a cancelled one are then sent. If a
// message does not exist ([operate.ErrNotFound]) or a forwarder may be sending it
// ([operate.ErrNeedsForce]), Cancel moves none.
//
// After Cancel has returned, a cancelled message is not sent, unless the error wraps
// [ErrMaybeSent]: then the messages were moved too late, and may also have been sent.
func (m *Messages) Cancel(ctx context.Context, act operate.Act, ids ...int64) error {
	err := act.ValidateLoss()
	if err == nil {
		ids, err = rows.Distinct(ids)
	}
	if err == nil {
		_, err = m.cancelBatch(ctx, act, ids, func(found []candidate) ([]candidate, error) {
			for i, id := range ids {
				if i == len(found) || found[i].id != id {
					return nil, notFound(id)
				}
				if found[i].busy || !found[i].unread {
					return nil, fmt.Errorf("message %d %w: a forwarder may be sending it; stop the forwarders, wait until it backs off, "+
						"or use CancelMatching with Plan.Force", id, operate.ErrNeedsForce)
				}
			}
			return found, nil
		})
	}
	if err != nil {
		return fmt.Errorf("outbox: cancel: %w", err)
	}
	return nil
}

// CancelMatching moves the messages that match f to the dead letters, as [Messages.Cancel] does, in
// several transactions. It skips messages whose outcome a forwarder is recording, and without
// Plan.Force those that a forwarder may be sending. It ignores messages that are written while it
// runs. When ctx ends, it stops after the current batch. It returns a Report even with an error,
// without a batch whose commit has an unknown outcome.
func (m *Messages) CancelMatching(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Report, error) {
	report, err := m.changeMatching(ctx, act.ValidateLoss(), f, plan, batchRows, func(ids []int64) (batch operate.Report, err error) {
		n, err := m.cancelBatch(ctx, act, ids, func(found []candidate) (chosen []candidate, err error) {
			chosen, batch.Skipped = choose(plan, found)
			return chosen, nil
		})
		if err != nil && !errors.Is(err, ErrMaybeSent) {
			return operate.Report{}, err
		}
		batch.Changed = n
		return batch, err
	})
	if err != nil {
		return report, fmt.Errorf("outbox: cancel: %w", err)
	}
	return report, nil
}

// DryRun reports what CancelMatching would cancel and skip now with the same Filter and Plan.
func (m *Messages) DryRun(ctx context.Context, f operate.Filter, plan operate.Plan) (operate.Report, error) {
	plan = operate.Plan{Force: plan.Force}
	report, err := m.changeMatching(ctx, nil, f, plan, dryRunRows, func(ids []int64) (batch operate.Report, err error) {
		err = m.db.Look(ctx, func(tx *sql.Tx) error {
			b, err := m.barriers(ctx, tx, ids, false)
			if err != nil {
				return err
			}
			found, err := m.candidates(ctx, tx, ids, b, false)
			if err != nil {
				return err
			}
			chosen, skipped := choose(plan, found)
			batch = operate.Report{Changed: len(chosen), Skipped: skipped}
			return nil
		})
		return batch, err
	})
	if err != nil {
		return operate.Report{}, fmt.Errorf("outbox: dry run: %w", err)
	}
	return report, nil
}

// refused is an error that was found before.
func (m *Messages) changeMatching(
	ctx context.Context, refused error, f operate.Filter, plan operate.Plan, size int, change func(ids []int64) (operate.Report, error),
) (operate.Report, error) {
	if err := errors.Join(refused, m.table.CheckChange(f), rows.CheckPlan(plan)); err != nil {
		return operate.Report{}, err
	}
	return m.table.EachBatch(ctx, f, plan, "", size, change)
}

func choose(p operate.Plan, found []candidate) (chosen []candidate, skipped []int64) {
	for _, c := range found {
		if !c.busy && (c.unread || p.Force) {
			chosen = append(chosen, c)
		} else {
			skipped = append(skipped, c.id)
		}
	}
	return chosen, skipped
}

func (m *Messages) cancelBatch(
	ctx context.Context, act operate.Act, ids []int64, choose func(found []candidate) ([]candidate, error),
) (n int, err error) {
	began := time.Now() // before the transaction: notYet compares with the clock at its beginning
	hurry := false
	err = m.db.Write(ctx, func(tx *sql.Tx) error {
		b, err := m.barriers(ctx, tx, ids, true)
		if err != nil {
			return err
		}
		failpoint.Hit("operate/outbox/barriers-locked")
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
	failpoint.Hit("operate/outbox/cancelled")
	if took := time.Since(began); err == nil && hurry && took > margin {
		err = fmt.Errorf("%w: %v, with %d messages from %d", ErrMaybeSent, took.Round(time.Millisecond), n, ids[0])
	}
	return n, err
}

func (m *Messages) bury(ctx context.Context, tx *sql.Tx, act operate.Act, chosen []candidate) error {
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
	d := m.db.Dialect
	labels, join := outboxrow.Labels(d)
	text := parkedrows.Clean("cancelled by "+act.Actor+": "+act.Why, parkedrows.MaxError)
	group := parkedrows.Fingerprint(parkedrows.Cause{Reason: outboxrow.DeadCancelled, Text: text})
	for _, step := range []struct {
		table, query string
		args         []any
	}{
		// A message that has been due may have been sent by a forwarder that died before it
		// recorded the outcome, even if the broker has refused it since.
		{"outbox_dead", `INSERT INTO {outbox_dead} (position, message_id, topic, ordering_key, payload, metadata, created_at,
		                             attempts, last_error, reason, fingerprint, unknown, ` + outboxrow.LabelColumns + `)
		  SELECT o.position, ` + outboxrow.MessageID(d) + `, o.topic, o.ordering_key, o.payload, o.metadata, o.created_at, o.attempts,
		         CASE WHEN o.last_error IS NULL THEN $2 ELSE $2 || '; last error: ' || o.last_error END,
		         '` + outboxrow.DeadCancelled + `', $3, o.unknown OR o.failing_since IS NOT NULL OR NOT ` + notYet + `, ` + labels + `
		  FROM {outbox} AS o` + join + ` WHERE o.position {among $1 bigint} ORDER BY o.position`, []any{d.List(ids), text, group}},
		{"outbox", `DELETE FROM {outbox} WHERE position {among $1 bigint}`, []any{d.List(ids)}},
	} {
		changed, err := dialect.Affected(tx.ExecContext(ctx, d.SQL(step.query), step.args...))
		if err == nil && changed < int64(len(ids)) { // this transaction has locked the rows
			err = d.Unchanged(step.table, fmt.Sprintf("%d of %d rows of cancelled messages were not changed", int64(len(ids))-changed, len(ids)))
		}
		if err != nil {
			return err
		}
		failpoint.Hit("operate/outbox/burying")
	}
	if len(heads) > 0 {
		// Unblock unblocks only keys that a dead letter blocks.
		_, err := tx.ExecContext(ctx, d.SQL(`UPDATE {blocked_keys} AS b SET reason = '`+outboxrow.BlockedDead+`'
			WHERE (b.position, b.ordering_key) IN (SELECT c.position, c.ordering_key FROM `+
			d.Columns("position bigint", "ordering_key text")+`)`), d.List(heads), d.Strings(keys))
		if err != nil {
			return err
		}
	}
	if err := rows.Unblock(ctx, tx, d, heads, keys); err != nil {
		return err
	}
	return m.audit(ctx, tx, act, "cancel", ids, messageIDs)
}

// Retry makes messages due now in one transaction, even if they back off or are delayed, and keeps
// their attempts. A Blocked message still waits for BlockedBy. If one does not exist
// ([operate.ErrNotFound]), Retry changes none. A forwarder finds the messages within
// forwarder.Config.PollMax.
func (m *Messages) Retry(ctx context.Context, act operate.Act, ids ...int64) error {
	err := act.Validate()
	if err == nil {
		ids, err = rows.Distinct(ids)
	}
	if err == nil {
		err = m.db.Write(ctx, func(tx *sql.Tx) error {
			messageIDs, err := m.known(ctx, tx, ids)
			if err != nil {
				return err
			}
			return m.retry(ctx, tx, act, ids, messageIDs)
		})
	}
	if err != nil {
		return fmt.Errorf("outbox: retry: %w", err)
	}
	return nil
}

// RetryMatching makes the messages that match f and back off due now, in several transactions, or
// with Filter.State Delayed those that their producer delayed. It refuses other states, and ignores
// Plan.Force and messages that are written while it runs. When ctx ends, it stops after the current
// batch. It returns a Report even with an error, without a batch whose commit has an unknown
// outcome.
func (m *Messages) RetryMatching(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Report, error) {
	refused := errors.Join(act.Validate(), m.table.CheckChange(f))
	if f.State == Due || f.State == Blocked {
		refused = errors.Join(refused, fmt.Errorf("State is %q: only %s and %s messages can be retried", f.State, BackingOff, Delayed))
	}
	f.State = cmp.Or(f.State, BackingOff)
	f.All = false // CheckChange would refuse All together with State
	report, err := m.changeMatching(ctx, refused, f, plan, batchRows, func(ids []int64) (batch operate.Report, err error) {
		err = m.db.Write(ctx, func(tx *sql.Tx) error {
			ids, messageIDs, err := m.later(ctx, tx, ids)
			batch.Changed = len(ids)
			if err != nil || len(ids) == 0 {
				return err
			}
			return m.retry(ctx, tx, act, ids, messageIDs)
		})
		if err != nil {
			return operate.Report{}, err
		}
		return batch, nil
	})
	if err != nil {
		return report, fmt.Errorf("outbox: retry: %w", err)
	}
	return report, nil
}

func (m *Messages) later(ctx context.Context, tx *sql.Tx, ids []int64) (later []int64, messageIDs []string, err error) {
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			id        int64
			messageID string
		)
		err := scan(&id, &messageID)
		later, messageIDs = append(later, id), append(messageIDs, messageID)
		return err
	}, m.db.SQL(`
		SELECT position, message_id FROM {outbox} WHERE position {among $1 bigint} AND due_at > {now}
		ORDER BY position {for_update}`), m.db.List(ids))
	return later, messageIDs, err
}

func (m *Messages) retry(ctx context.Context, tx *sql.Tx, act operate.Act, ids []int64, messageIDs []string) error {
	_, err := tx.ExecContext(ctx, m.db.SQL(`
		UPDATE {outbox} SET due_at = {now} WHERE position {among $1 bigint} AND due_at > {now}`), m.db.List(ids))
	if err != nil {
		return err
	}
	failpoint.Hit("operate/outbox/due")
	return m.audit(ctx, tx, act, "retry", ids, messageIDs)
}

func (m *Messages) audit(ctx context.Context, tx *sql.Tx, act operate.Act, action string, ids []int64, messageIDs []string) error {
	subjects := make([]string, len(ids))
	for i, id := range ids {
		subjects[i] = "outbox:" + strconv.FormatInt(id, 10)
	}
	return rows.Audit(ctx, tx, m.db.Dialect, act.Actor, act.Why, action, 0, subjects, messageIDs)
}
