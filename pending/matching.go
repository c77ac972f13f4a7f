package pending

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/operate"
)

const (
	// batchRows is the maximum number of rows that one transaction changes. It is small
	// because other transactions wait for the locks.
	batchRows = 100

	// dryRunRows is used instead of batchRows in a dry run, which locks nothing. Each batch
	// reads a window of the outbox, so small batches would read the same rows many times.
	dryRunRows = 2_000
)

// eachBatch calls the function change with the IDs of the messages that match f and
// existed when eachBatch began. The parameter rows is the maximum number of IDs in one
// call. The function change adds its results to the report.
func (m *Messages) eachBatch(
	ctx context.Context, f Filter, plan Plan, rows int, report *Report, change func(ids []int64, report *Report) error,
) error {
	last, err := m.last(ctx)
	rate := operate.NewRate(plan.Rate)
	for err == nil && f.AfterID < last && (f.Limit == 0 || report.Changed < f.Limit) {
		if err = rate.Wait(ctx, rows); err != nil {
			return err
		}
		size, before := rate.Room(rows), report.Changed
		if f.Limit > 0 {
			size = min(size, f.Limit-before)
		}
		var ids []int64
		if ids, f.AfterID, err = m.matching(ctx, f, size, last); err != nil {
			return err
		}
		if len(ids) > 0 {
			if err := change(ids, report); err != nil {
				return err
			}
			if plan.Progress != nil {
				plan.Progress(*report)
			}
		}
		rate.Took(report.Changed - before)
	}
	return err
}

func (m *Messages) last(ctx context.Context) (last int64, err error) {
	err = m.read(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, m.dialect.SQL(`SELECT COALESCE(MAX(position), 0) FROM {outbox}`)).Scan(&last)
	})
	return last, err
}

// matching returns the IDs of the next messages that match f. The result next is the
// value of f.AfterID for the following call.
func (m *Messages) matching(ctx context.Context, f Filter, size int, last int64) (ids []int64, next int64, err error) {
	err = m.read(ctx, func(tx *sql.Tx) error {
		w, err := m.window(ctx, tx, f)
		if err != nil {
			return err
		}
		ids, next = nil, last
		if w.next > 0 {
			next = w.next
		}
		return m.rows(ctx, tx, w, `o.position`, limit(size), func(scan func(dest ...any) error) error {
			var id int64
			err := scan(&id)
			if id <= last {
				ids = append(ids, id)
			}
			return err
		})
	})
	if len(ids) == size {
		next = ids[size-1]
	}
	return ids, next, err
}

// known returns the message ids of the rows with these IDs, or [ErrNotFound].
func (m *Messages) known(ctx context.Context, tx *sql.Tx, ids []int64) (messageIDs []string, err error) {
	found := map[int64]bool{}
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var (
			id        int64
			messageID string
		)
		err := scan(&id, &messageID)
		found[id] = true
		messageIDs = append(messageIDs, messageID)
		return err
	}, m.dialect.SQL(`SELECT position, message_id FROM {outbox} WHERE position {among $1 bigint} ORDER BY position {for_update}`),
		m.dialect.List(ids))
	for _, id := range ids {
		if err == nil && !found[id] {
			err = notFound(id)
		}
	}
	return messageIDs, err
}
