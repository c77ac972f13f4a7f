package pending

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/operate"
)

// Retry makes messages due now, even if they back off or are delayed. It does this in
// one transaction. It does not reset their attempts. A Blocked message still waits for
// BlockedBy. If one of the messages does not exist ([ErrNotFound]), Retry changes no
// message. A forwarder finds the messages within forwarder.Config.PollMax.
func (m *Messages) Retry(ctx context.Context, act Act, ids ...int64) error {
	err := act.Validate()
	if err == nil {
		ids, err = operate.Distinct(ids)
	}
	if err == nil {
		err = m.write(ctx, func(tx *sql.Tx) error {
			messageIDs, err := m.known(ctx, tx, ids)
			if err != nil {
				return err
			}
			return m.retry(ctx, tx, act, ids, messageIDs)
		})
	}
	if err != nil {
		return fmt.Errorf("pending: retry: %w", err)
	}
	return nil
}

// RetryMatching selects the messages that match f and back off, and makes them due now,
// in several transactions. If Filter.State is Delayed, it selects messages that their
// producer delayed instead. It refuses other states. It ignores messages that are
// written while it runs. When ctx ends, it stops after the current batch. It returns a
// Report even with an error. The Report does not count a batch whose commit has an
// unknown outcome. RetryMatching ignores Plan.Force.
func (m *Messages) RetryMatching(ctx context.Context, act Act, f Filter, plan Plan) (Report, error) {
	var report Report
	err := validateChange(act.Validate(), f, plan)
	if f.State == Due || f.State == Blocked {
		err = errors.Join(err, fmt.Errorf("State is %q: only %s and %s messages can be retried", f.State, BackingOff, Delayed))
	}
	f.State = cmp.Or(f.State, BackingOff)
	f.All = false // validateChange would refuse All together with State
	if err == nil {
		err = m.eachBatch(ctx, f, plan, batchRows, &report, func(ids []int64, report *Report) error {
			changed := 0
			err := m.write(ctx, func(tx *sql.Tx) error {
				ids, messageIDs, err := m.later(ctx, tx, ids)
				changed = len(ids)
				if err != nil || changed == 0 {
					return err
				}
				return m.retry(ctx, tx, act, ids, messageIDs)
			})
			if err == nil {
				report.Changed += changed
			}
			return err
		})
	}
	if err != nil {
		return report, fmt.Errorf("pending: retry: %w", err)
	}
	return report, nil
}

// later returns the IDs and the message ids of the messages whose due time is in the
// future.
func (m *Messages) later(ctx context.Context, tx *sql.Tx, ids []int64) (later []int64, messageIDs []string, err error) {
	rows, err := tx.QueryContext(ctx, m.dialect.SQL(`
		SELECT position, message_id FROM {outbox} WHERE position {among $1 bigint} AND due_at > {now}
		ORDER BY position {for_update}`), m.dialect.List(ids))
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id        int64
			messageID string
		)
		if err := rows.Scan(&id, &messageID); err != nil {
			return nil, nil, err
		}
		later, messageIDs = append(later, id), append(messageIDs, messageID)
	}
	return later, messageIDs, rows.Err()
}

func (m *Messages) retry(ctx context.Context, tx *sql.Tx, act Act, ids []int64, messageIDs []string) error {
	_, err := tx.ExecContext(ctx, m.dialect.SQL(`
		UPDATE {outbox} SET due_at = {now} WHERE position {among $1 bigint} AND due_at > {now}`), m.dialect.List(ids))
	if err != nil {
		return err
	}
	failpoint.Hit("pending/due")
	return m.audit(ctx, tx, act, "retry", ids, messageIDs)
}

func (m *Messages) audit(ctx context.Context, tx *sql.Tx, act Act, action string, ids []int64, messageIDs []string) error {
	subjects := make([]string, len(ids))
	for i, id := range ids {
		subjects[i] = "outbox:" + strconv.FormatInt(id, 10)
	}
	return operate.Audit(ctx, tx, m.dialect, act.Actor, act.Why, action, 0, subjects, messageIDs)
}
