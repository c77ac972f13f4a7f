package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/parked"
)

// The lists contain IDs of parked messages.
type parkedChangeJSON struct {
	DryRun    bool    `json:"dry_run"`
	Changed   int     `json:"changed"`             // number of changed messages; in a dry run, of messages that would be changed
	Skipped   []int64 `json:"skipped,omitempty"`   // IDs of messages that a consumer is handling
	Handled   []int64 `json:"handled,omitempty"`   // IDs of messages that a consumer has handled
	Abandoned []int64 `json:"abandoned,omitempty"` // IDs of changed messages whose process has died or is frozen
}

type parkedChange struct {
	do          parked.Action
	short, long string
	done        string // verb in the output, such as "discarded"
	needsWhy    bool
	named       func(m *parked.Messages, ctx context.Context, who operate.Act, ids ...int64) error
	matching    func(m *parked.Messages, ctx context.Context, who operate.Act, f operate.Filter, plan operate.Plan) (operate.Report, error)
}

const whatIsClaimed = `

A message that a consumer is handling is left alone: if you name it, that is an error,
else the command reports it.`

func (a *app) parkedRunCommand() *cobra.Command {
	return a.parkedChangeCommand(parkedChange{
		do: parked.RunNow, done: "Due now:", named: (*parked.Messages).RunNow, matching: (*parked.Messages).RunNowMatching,
		short: "Run waiting messages now",
		long: `Make waiting messages due now. Messages that you name by ID are changed at once. With
filters, the command says which messages it would change. With --yes, it changes them.` + whatIsClaimed,
	})
}

func (a *app) parkedCancelCommand() *cobra.Command {
	return a.parkedChangeCommand(parkedChange{
		do: parked.Cancel, done: "Cancelled", needsWhy: true, named: (*parked.Messages).Cancel, matching: (*parked.Messages).CancelMatching,
		short: "Move waiting and held messages into quarantine; needs --why",
		long: `Move waiting and held messages into quarantine, where once quarantine replays, edits and
discards them. Messages that you name by ID are moved at once. With filters, the command
says which messages it would move. With --yes, it moves them. Messages behind them in
the order of an ordering key continue.` + whatIsClaimed,
	})
}

func (a *app) parkedDiscardCommand() *cobra.Command {
	return a.parkedChangeCommand(parkedChange{
		do: parked.Discard, done: "Discarded", needsWhy: true, named: (*parked.Messages).Discard, matching: (*parked.Messages).DiscardMatching,
		short: "End waiting and held messages for good; needs --why",
		long: `End waiting and held messages for good. Messages that you name by ID are ended at once.
With filters, the command says which messages it would end. With --yes, it ends them.
Messages behind them in the order of an ordering key continue.` + whatIsClaimed,
	})
}

func (a *app) parkedChangeCommand(c parkedChange) *cobra.Command {
	var (
		filter operate.Filter
		plan   operate.Plan
		to     = act{noRate: true}
	)
	cmd := &cobra.Command{Use: string(c.do) + " [ID...]", Short: c.short, Long: c.long, Args: cobra.ArbitraryArgs}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := to.selected(cmd, args, parkedConditions)
		if err != nil {
			return err
		}
		if err := a.needWhy(c.needsWhy && (len(ids) > 0 || to.yes)); err != nil {
			return err
		}
		filter.All = to.all
		return with(a, parked.New, nil, func(ctx context.Context, m *parked.Messages, _ []string) error {
			who, err := a.who()
			if err != nil {
				return err
			}
			switch {
			case len(ids) > 0:
				if err := c.named(m, ctx, who, ids...); err != nil {
					return err
				}
				return a.parkedChanged(ctx, c, operate.Report{Changed: len(ids)}, nil)
			case !to.yes:
				report, err := m.DryRun(ctx, c.do, filter)
				if err != nil {
					return err
				}
				return a.parkedDryRun(c, report)
			}
			progress := a.progress()
			plan.Progress = func(r operate.Report) { progress.line(counted(r.Changed, "message", "messages")) }
			report, err := c.matching(m, ctx, who, filter, plan)
			progress.end()
			return a.parkedChanged(ctx, c, report, err)
		})(cmd, args)
	}
	addParkedFilter(cmd, &filter)
	a.addActFlags(cmd, &to)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of messages to change")
	cmd.Flags().Var(atLeast(&plan.Rate, 1), "rate", "most messages a second")
	return cmd
}

func parkedChangeOf(r operate.Report) parkedChangeJSON {
	return parkedChangeJSON{Changed: r.Changed, Skipped: r.Skipped, Handled: r.Handled, Abandoned: r.Abandoned}
}

func parkedLists(r operate.Report) (text string) {
	for _, list := range []struct {
		ids  []int64
		what string
	}{
		{r.Skipped, "Left alone, a consumer is handling them"},
		{r.Handled, "Left alone, a consumer has handled them"},
		{r.Abandoned, "Their process died, or is frozen and may still run a handler without dedup"},
	} {
		if len(list.ids) > 0 {
			text += fmt.Sprintf("%s: %s.\n", list.what, idList(list.ids))
		}
	}
	return text
}

func (a *app) parkedDryRun(c parkedChange, r operate.Report) error {
	out := parkedChangeOf(r)
	out.DryRun = true
	if r.Changed == 0 && len(r.Skipped)+len(r.Handled) == 0 {
		return a.print(out, "No message matches.\n")
	}
	return a.print(out, fmt.Sprintf("This would %s %s. Nothing was changed: add --yes to do it.\n", c.do,
		counted(r.Changed, "message", "messages"))+parkedLists(r))
}

func (a *app) parkedChanged(ctx context.Context, c parkedChange, r operate.Report, err error) error {
	if err == nil || r.Changed > 0 {
		text := fmt.Sprintf("%s %s.\n", c.done, counted(r.Changed, "message", "messages"))
		if err := a.print(parkedChangeOf(r), text+parkedLists(r)); err != nil {
			return err
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted. Run the command again for the others.")
	case err != nil:
		return err
	case len(r.Skipped)+len(r.Handled) > 0:
		return foundError{}
	}
	return nil
}
