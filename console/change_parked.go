package console

import (
	"context"
	"slices"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/parked"
)

// leftOutParked says why a change leaves out some of the parked messages.
const leftOutParked = "a consumer is handling or has handled them, or somebody else is changing them"

func (c *Console) runParked() act {
	return act{
		Name: "run-parked", action: RunParked, Section: "parked", Title: "Run parked messages now", Button: "Run now",
		HasRate: true, states: []string{string(parked.Waiting)}, LeftOut: leftOutParked,
		Warning: "Messages that wait for a later time are made due now. Their attempts are not reset, so the next failure of a " +
			"message can put it into quarantine. Fix the cause first.",
		preview: c.previewParked(parked.RunNow),
		run:     c.changeParked(c.parked.RunNowMatching),
	}
}

func (c *Console) cancelParked() act {
	return act{
		Name: "cancel-parked", action: CancelParked, Section: "parked", Title: "Cancel parked messages", Button: "Cancel",
		HasRate: true, Danger: true, states: []string{string(parked.Waiting), string(parked.Held)}, LeftOut: leftOutParked,
		Warning: "Cancelled messages go into quarantine, where you can replay, edit or discard them. " +
			"Messages that wait for them run.",
		preview: c.previewParked(parked.Cancel),
		run:     c.changeParked(c.parked.CancelMatching),
	}
}

func (c *Console) discardParked() act {
	return act{
		Name: "discard-parked", action: DiscardParked, Section: "parked", Title: "Discard parked messages", Button: "Discard for good",
		HasRate: true, Danger: true, states: []string{string(parked.Waiting), string(parked.Held)}, LeftOut: leftOutParked,
		Warning: "The messages are never handled, and neither are late copies of them. Messages that wait for them run.",
		preview: c.previewParked(parked.Discard),
		run:     c.changeParked(c.parked.DiscardMatching),
	}
}

func (c *Console) previewParked(do parked.Action) func(context.Context, selection, operate.Plan) (preview, error) {
	return func(ctx context.Context, s selection, _ operate.Plan) (preview, error) {
		dry, err := c.parked.DryRun(ctx, do, s.parked())
		return preview{Total: dry.Changed, Skipped: leftOut(dry)}, err
	}
}

// leftOut returns the IDs of the messages that a change has left out: messages that
// were skipped, and messages that were already handled.
func leftOut(r parked.Report) []int64 {
	return slices.Concat(r.Skipped, r.Handled)
}

func (c *Console) changeParked(
	change func(context.Context, operate.Act, parked.Filter, parked.Plan) (parked.Report, error),
) func(context.Context, operate.Act, selection, operate.Plan, func(report)) (report, error) {
	return func(ctx context.Context, who operate.Act, s selection, p operate.Plan, progress func(report)) (report, error) {
		changed := func(r parked.Report) report { return report{Total: s.Limit, Done: r.Changed, Skipped: leftOut(r)} }
		done, err := change(ctx, who, s.parked(), parked.Plan{
			Rate: p.Rate, Progress: func(r parked.Report) { progress(changed(r)) },
		})
		return changed(done), err
	}
}
