package console

import (
	"context"

	"github.com/watermill-once/once/operate"
)

func (c *Console) replayQuarantined() act {
	return act{
		Name: "replay", action: ReplayQuarantined, Section: "quarantine", Title: "Replay quarantined messages", Button: "Start the replay",
		HasRate: true, HasPlan: true, reasons: quarantineReasons,
		Warning: "The messages go back to the consumer that failed, and to no other. Fix the cause first. " +
			"With a canary, a few messages are replayed first, and the others only if these succeed.",
		Force: "also run messages that the consumer has handled in the meantime",
		preview: func(ctx context.Context, s selection, p operate.Plan) (preview, error) {
			groups, err := c.quarantine.DryRun(ctx, s.poison(), p)
			return previewOf(groups, false), err
		},
		run: func(ctx context.Context, who operate.Act, s selection, p operate.Plan, progress func(report)) (report, error) {
			p.Progress = func(r operate.Report) { progress(replayReport(r)) }
			done, err := c.quarantine.ReplayMatching(ctx, who, s.poison(), p)
			return replayReport(done.Report), err
		},
	}
}

func replayReport(r operate.Report) report {
	return report{Total: r.Total, Done: r.Resolved, Replay: r}
}

func (c *Console) discardQuarantined() act {
	return act{
		Name: "discard", action: DiscardQuarantined, Section: "quarantine", Title: "Discard quarantined messages", Button: "Discard",
		Danger: true, reasons: quarantineReasons,
		Warning: "The messages are never handled, and neither are late copies of them. " +
			"You can read the entries until the retention of the inbox ends.",
		preview: func(ctx context.Context, s selection, _ operate.Plan) (preview, error) {
			groups, err := c.quarantine.DryRun(ctx, s.poison(), operate.Plan{})
			return previewOf(groups, false), err
		},
		run: func(ctx context.Context, who operate.Act, s selection, _ operate.Plan, _ func(report)) (report, error) {
			n, err := c.quarantine.DiscardMatching(ctx, who, s.poison())
			return report{Total: s.Limit, Done: n}, err
		},
	}
}
