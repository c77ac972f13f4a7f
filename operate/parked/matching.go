package parked

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/internal/rows"
)

const (
	// batchRows is small, because other transactions wait for the locks of a batch.
	batchRows = 100

	dryRows = 5000

	changeable = `'' || p.state IN ('waiting', 'held')`
)

// RunNowMatching selects the waiting messages that match f, and makes them due
// immediately, in several transactions. It does not change messages that are already
// due. It skips messages that a consumer is handling, and ignores messages that are
// stored while it runs. When ctx ends, it stops after the current batch. It returns a
// Report even with an error. The Report does not count a batch whose commit has an
// unknown outcome.
func (m *Messages) RunNowMatching(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Report, error) {
	return m.changeMatching(ctx, RunNow, act, act.Validate(), f, plan)
}

// CancelMatching moves the waiting and held messages that match f into quarantine, as
// [Messages.Cancel] does, in several transactions. It skips messages that a consumer is
// handling or has handled, see [operate.Report]. Like [Messages.RunNowMatching], it ignores new
// messages, and returns a Report even with an error.
func (m *Messages) CancelMatching(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Report, error) {
	return m.changeMatching(ctx, Cancel, act, act.ValidateLoss(), f, plan)
}

// DiscardMatching ends the waiting and held messages that match f, as
// [Messages.Discard] does, in several transactions. It skips the same messages as
// [Messages.CancelMatching].
func (m *Messages) DiscardMatching(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Report, error) {
	return m.changeMatching(ctx, Discard, act, act.ValidateLoss(), f, plan)
}

// DryRun reports what RunNowMatching, CancelMatching or DiscardMatching would do now
// with the same Filter. It changes nothing. It does not wait for open transactions, so
// the list Handled may lack messages that are being handled.
func (m *Messages) DryRun(ctx context.Context, do Action, f operate.Filter) (operate.Report, error) {
	err := m.checkChange(f, do)
	if !slices.Contains([]Action{RunNow, Cancel, Discard}, do) {
		err = errors.Join(err, fmt.Errorf("Action is %q, none of %s, %s, %s", do, RunNow, Cancel, Discard))
	}
	var report operate.Report
	if err == nil {
		report, err = m.table.EachBatch(ctx, f, operate.Plan{}, changeable, dryRows, func(ids []int64) (batch operate.Report, err error) {
			err = m.db.Look(ctx, func(tx *sql.Tx) error {
				batch, err = m.look(ctx, tx, do, ids)
				return err
			})
			return batch, err
		})
	}
	if err != nil {
		return operate.Report{}, fmt.Errorf("parked: dry run: %w", err)
	}
	return report, nil
}

func (m *Messages) look(ctx context.Context, tx *sql.Tx, do Action, ids []int64) (report operate.Report, err error) {
	found, err := m.readCandidates(ctx, tx, ids, ``)
	if err != nil {
		return operate.Report{}, err
	}
	known, err := m.inInbox(ctx, tx, found)
	for _, c := range found {
		c.handled = known[c.id]
		count(&report, do, c)
	}
	return report, err
}

func (m *Messages) changeMatching(
	ctx context.Context, do Action, act operate.Act, err error, f operate.Filter, plan operate.Plan,
) (report operate.Report, _ error) {
	if err = errors.Join(err, m.checkChange(f, do), rows.CheckPlan(plan)); err == nil {
		report, err = m.table.EachBatch(ctx, f, plan, changeable, batchRows, func(ids []int64) (operate.Report, error) {
			all := func([]candidate) error { return nil }
			batch, err := m.changeBatch(ctx, do, act, ids, all)
			if !contended(err) {
				return batch, err
			}
			// A handler is running one of the messages, or a copy of it.
			var each operate.Report
			for _, id := range ids {
				one, err := m.changeBatch(ctx, do, act, []int64{id}, all)
				switch {
				case contended(err):
					one.Skipped = []int64{id}
				case err != nil:
					return each, err
				}
				rows.AddReport(&each, one)
			}
			return each, nil
		})
	}
	if err != nil {
		return report, fmt.Errorf("parked: %s: %w", do, err)
	}
	return report, nil
}
