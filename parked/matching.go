package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/watermill-once/once/internal/operate"
)

const (
	// batchRows is the maximum number of rows that one transaction changes. It is small
	// because other transactions wait for the locks.
	batchRows = 100

	// dryRows is the maximum number of rows that one transaction of a dry run reads.
	dryRows = 5000
)

// RunNowMatching selects the waiting messages that match f, and makes them due
// immediately, in several transactions. It does not change messages that are already
// due. It skips messages that a consumer is handling, and ignores messages that are
// stored while it runs. When ctx ends, it stops after the current batch. It returns a
// Report even with an error. The Report does not count a batch whose commit has an
// unknown outcome.
func (m *Messages) RunNowMatching(ctx context.Context, act Act, f Filter, plan Plan) (Report, error) {
	return m.changeMatching(ctx, RunNow, act, act.Validate(), f, plan)
}

// CancelMatching moves the waiting and held messages that match f into quarantine, as
// [Messages.Cancel] does, in several transactions. It skips messages that a consumer is
// handling or has handled, see [Report]. Like [Messages.RunNowMatching], it ignores new
// messages, and returns a Report even with an error.
func (m *Messages) CancelMatching(ctx context.Context, act Act, f Filter, plan Plan) (Report, error) {
	return m.changeMatching(ctx, Cancel, act, act.ValidateLoss(), f, plan)
}

// DiscardMatching ends the waiting and held messages that match f, as
// [Messages.Discard] does, in several transactions. It skips the same messages as
// [Messages.CancelMatching].
func (m *Messages) DiscardMatching(ctx context.Context, act Act, f Filter, plan Plan) (Report, error) {
	return m.changeMatching(ctx, Discard, act, act.ValidateLoss(), f, plan)
}

// DryRun reports what RunNowMatching, CancelMatching or DiscardMatching would do now
// with the same Filter. It changes nothing. It does not wait for open transactions, so
// the list Handled may lack messages that are being handled.
func (m *Messages) DryRun(ctx context.Context, do Action, f Filter) (Report, error) {
	var report Report
	err := f.validateChange(do)
	if !slices.Contains([]Action{RunNow, Cancel, Discard}, do) {
		err = errors.Join(err, fmt.Errorf("Action is %q, none of %s, %s, %s", do, RunNow, Cancel, Discard))
	}
	if err == nil {
		err = m.eachBatch(ctx, f, Plan{}, dryRows, &report, func(ids []int64) (batch Report, err error) {
			err = m.read(ctx, func(tx *sql.Tx) error {
				batch, err = m.look(ctx, tx, do, ids)
				return err
			})
			return batch, err
		})
	}
	if err != nil {
		return Report{}, fmt.Errorf("parked: dry run: %w", err)
	}
	return report, nil
}

// look reports what an action would do with the messages that have these ids.
func (m *Messages) look(ctx context.Context, tx *sql.Tx, do Action, ids []int64) (report Report, err error) {
	found, err := m.readCandidates(ctx, tx, ids, ``)
	if err != nil {
		return Report{}, err
	}
	known, err := m.inInbox(ctx, tx, found)
	for _, c := range found {
		c.handled = known[c.id]
		report.count(do, c)
	}
	return report, err
}

func (m *Messages) changeMatching(ctx context.Context, do Action, act Act, err error, f Filter, plan Plan) (Report, error) {
	var report Report
	err = errors.Join(err, f.validateChange(do), plan.validate())
	if err == nil {
		err = m.eachBatch(ctx, f, plan, batchRows, &report, func(ids []int64) (Report, error) {
			all := func([]candidate) error { return nil }
			batch, err := m.changeBatch(ctx, do, act, ids, all)
			if !contended(err) {
				return batch, err
			}
			// A handler is running one of the messages, or a copy of it.
			var each Report
			for _, id := range ids {
				one, err := m.changeBatch(ctx, do, act, []int64{id}, all)
				switch {
				case contended(err):
					each.Skipped = append(each.Skipped, id)
				case err != nil:
					return each, err
				}
				each.add(one)
			}
			return each, nil
		})
	}
	if err != nil {
		return report, fmt.Errorf("parked: %s: %w", do, err)
	}
	return report, nil
}

// eachBatch calls change with batches of IDs, and adds up the reports. The IDs belong
// to messages that match f and existed when eachBatch began.
func (m *Messages) eachBatch(
	ctx context.Context, f Filter, plan Plan, size int, report *Report, change func(ids []int64) (Report, error),
) error {
	last, err := m.last(ctx)
	rate := operate.NewRate(plan.Rate)
	for err == nil && f.AfterID < last && (f.Limit == 0 || report.Changed < f.Limit) {
		if err = rate.Wait(ctx, size); err != nil {
			return err
		}
		n := rate.Room(size)
		if f.Limit > 0 {
			n = min(n, f.Limit-report.Changed)
		}
		var ids []int64
		if ids, f.AfterID, err = m.matching(ctx, f, n, last); err != nil {
			return err
		}
		if len(ids) == 0 {
			continue
		}
		batch, err := change(ids)
		report.add(batch)
		if err != nil {
			return err
		}
		if plan.Progress != nil {
			plan.Progress(*report)
		}
		rate.Took(batch.Changed)
	}
	return err
}

func (m *Messages) last(ctx context.Context) (last int64, err error) {
	err = m.read(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, m.dialect.SQL(`SELECT COALESCE(MAX(id), 0) FROM {parked}`)).Scan(&last)
	})
	return last, err
}

// matching returns the IDs of the next waiting or held messages that match f. The
// result next is the value of f.AfterID for the following call.
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
		w.from += ` AND '' || p.state IN ('waiting', 'held')`
		return m.rows(ctx, tx, w, `p.id`, limit(size), func(scan func(dest ...any) error) error {
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
