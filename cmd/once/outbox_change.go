package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/pending"
)

// outboxChange contains the flags of the commands that change pending messages.
type outboxChange struct {
	filter pending.Filter
	state  string
	plan   pending.Plan
	act    act
}

// outboxChangeCommand returns a command that changes pending messages. The caller adds
// the help texts. The function change makes the change. The parameter needsWhy is true if
// the change loses messages, because such a change needs a reason.
func (a *app) outboxChangeCommand(
	use string, c *outboxChange, needsWhy bool,
	change func(ctx context.Context, m *pending.Messages, who pending.Act, ids []int64) error,
) *cobra.Command {
	cmd := &cobra.Command{Use: use + " [ID...]", Args: cobra.ArbitraryArgs}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := c.act.selected(cmd, args, pendingConditions)
		if err != nil {
			return err
		}
		if err := a.needWhy(needsWhy && (len(ids) > 0 || c.act.yes)); err != nil {
			return err
		}
		actor, err := a.actor()
		if err != nil {
			return err
		}
		c.filter.All, c.filter.State, c.filter.IDs = c.act.all, pending.State(c.state), ids
		return a.withPending(func(ctx context.Context, m *pending.Messages, _ []string) error {
			return change(ctx, m, pending.Act{Actor: actor, Why: a.settings.why}, ids)
		})(cmd, args)
	}
	addPendingFilter(cmd, &c.filter, &c.state)
	a.addActFlags(cmd, &c.act)
	cmd.Flags().Var(atLeast(&c.filter.Limit, 1), "limit", "largest number of messages to "+use)
	cmd.Flags().Var(atLeast(&c.plan.Rate, 1), "rate", "most messages a second")
	return cmd
}

func (a *app) outboxRetryCommand() *cobra.Command {
	var c outboxChange
	cmd := a.outboxChangeCommand("retry", &c, false, func(ctx context.Context, m *pending.Messages, who pending.Act, ids []int64) error {
		switch {
		case c.state == string(pending.Due) || c.state == string(pending.Blocked):
			return usagef("--state %s: only messages that are %s or %s can be tried now", c.state, pending.BackingOff, pending.Delayed)
		case len(ids) > 0:
			if err := m.Retry(ctx, who, ids...); err != nil {
				return err
			}
			return a.done(ctx, "Made due", changeJSON{Matched: len(ids), Changed: len(ids)}, "", nil)
		case !c.act.yes:
			return a.retryDryRun(ctx, m, &c)
		}
		return a.changed(ctx, "Made due", &c, func() (pending.Report, error) { return m.RetryMatching(ctx, who, c.filter, c.plan) })
	})
	cmd.Short = "Try messages now that back off or are delayed"
	cmd.Long = `Try messages now that back off or are delayed. Their attempts are not reset. Messages
that you name by ID are due at once. With filters, the command says how many messages
match. With --yes, it makes them due: those that back off, or with --state delayed
those that their producer delayed.

  once outbox retry 17 18
  once outbox retry --topic orders.placed --yes`
	return cmd
}

// retryDryRun counts the messages that "once outbox retry" would make due.
func (a *app) retryDryRun(ctx context.Context, m *pending.Messages, c *outboxChange) error {
	filter := c.filter
	filter.All = false
	if filter.State == "" {
		filter.State = pending.BackingOff
	}
	n := 0
	for {
		part, err := m.Count(ctx, filter)
		if err != nil {
			return err
		}
		n += part.N
		if filter.AfterID = part.Next; part.Next == 0 || filter.Limit > 0 && n >= filter.Limit {
			break
		}
	}
	if filter.Limit > 0 {
		n = min(n, filter.Limit)
	}
	return a.wouldChange("make due", pending.Report{Changed: n})
}

func (a *app) outboxCancelCommand() *cobra.Command {
	var c outboxChange
	cmd := a.outboxChangeCommand("cancel", &c, true, func(ctx context.Context, m *pending.Messages, who pending.Act, ids []int64) error {
		switch {
		case len(ids) > 0 && !c.plan.Force && c.plan.Rate == 0:
			err := m.Cancel(ctx, who, ids...)
			if errors.Is(err, pending.ErrNeedsForce) {
				return fmt.Errorf("%w (add --force)", err)
			}
			if err != nil {
				return err
			}
			return a.done(ctx, "Cancelled", changeJSON{Matched: len(ids), Changed: len(ids)}, "", nil)
		case len(ids) == 0 && !c.act.yes:
			report, err := m.DryRun(ctx, c.filter, c.plan)
			if err != nil {
				return err
			}
			return a.wouldChange("cancel", report)
		}
		return a.changed(ctx, "Cancelled", &c, func() (pending.Report, error) { return m.CancelMatching(ctx, who, c.filter, c.plan) })
	})
	cmd.Short = "Move messages to the dead letters instead of sending them; needs --why"
	cmd.Long = `Move messages to the dead letters instead of sending them, with the reason "cancelled".
Messages that you name by ID are cancelled at once. With filters, the command says which
messages it would cancel. With --yes, it cancels them. A message that a forwarder may be
sending needs --force, and may be sent all the same.

  once outbox cancel 17 --why "the order was a test"
  once outbox cancel --topic orders.placed --state backing_off --why "wrong topic" --yes`
	cmd.Flags().BoolVar(&c.plan.Force, "force", false, "also cancel messages that a forwarder may be sending")
	return cmd
}

// wouldChange prints the result of a dry run.
func (a *app) wouldChange(verb string, r pending.Report) error {
	change := changeJSON{DryRun: true, Matched: r.Changed + len(r.Skipped), Skipped: r.Skipped}
	if change.Matched == 0 {
		return a.print(change, "No message matches.\n")
	}
	text := fmt.Sprintf("This would %s %s.", verb, counted(r.Changed, "message", "messages"))
	if len(r.Skipped) > 0 {
		text += fmt.Sprintf(" %s would need --force, because a forwarder may be sending them: %s.",
			counted(len(r.Skipped), "more message", "more messages"), idList(r.Skipped))
	}
	return a.print(change, text+" Nothing was changed: add --yes to do it.\n")
}

// changed calls change, a function that changes many messages. Meanwhile it shows the
// progress, and at the end it prints the result.
func (a *app) changed(ctx context.Context, verb string, c *outboxChange, change func() (pending.Report, error)) error {
	p := a.progress()
	c.plan.Progress = func(r pending.Report) { p.line(counted(r.Changed, "message was changed", "messages were changed")) }
	report, err := change()
	p.end()
	return a.done(ctx, verb, changeJSON{
		Matched: report.Changed + len(report.Skipped), Changed: report.Changed, Skipped: report.Skipped,
	}, "run the command again for the others", err)
}
