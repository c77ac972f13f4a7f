package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/operate/status"
)

type outboxChange struct {
	filter operate.Filter
	plan   operate.Plan
	act    act
}

// The caller adds the help texts. needsWhy is for a change that loses messages.
func (a *app) outboxChangeCommand(
	use string, c *outboxChange, needsWhy bool,
	change func(ctx context.Context, m *outbox.Messages, who operate.Act, ids []int64) error,
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
		who, err := a.who()
		if err != nil {
			return err
		}
		c.filter.All, c.filter.IDs = c.act.all, ids
		return with(a, outbox.New, nil, func(ctx context.Context, m *outbox.Messages, _ []string) error {
			return change(ctx, m, who, ids)
		})(cmd, args)
	}
	addPendingFilter(cmd, &c.filter)
	a.addActFlags(cmd, &c.act)
	cmd.Flags().Var(atLeast(&c.filter.Limit, 1), "limit", "largest number of messages to "+use)
	cmd.Flags().Var(atLeast(&c.plan.Rate, 1), "rate", "most messages a second")
	return cmd
}

func (a *app) outboxRetryCommand() *cobra.Command {
	c := outboxChange{act: act{noRate: true}}
	cmd := a.outboxChangeCommand("retry", &c, false, func(ctx context.Context, m *outbox.Messages, who operate.Act, ids []int64) error {
		switch {
		case c.filter.State == outbox.Due || c.filter.State == outbox.Blocked:
			return usagef("--state %s: only messages that are %s or %s can be tried now", c.filter.State, outbox.BackingOff, outbox.Delayed)
		case len(ids) > 0:
			if err := m.Retry(ctx, who, ids...); err != nil {
				return err
			}
			return a.done(ctx, "Made due", changeJSON{Matched: len(ids), Changed: len(ids)}, "", nil)
		case !c.act.yes:
			return a.retryDryRun(ctx, m, &c)
		}
		return a.changed(ctx, "Made due", &c, func() (operate.Report, error) { return m.RetryMatching(ctx, who, c.filter, c.plan) })
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

func (a *app) retryDryRun(ctx context.Context, m *outbox.Messages, c *outboxChange) error {
	filter := c.filter
	filter.All = false
	if filter.State == "" {
		filter.State = outbox.BackingOff
	}
	n, err := countAll(ctx, filter, m.Count)
	if err != nil {
		return err
	}
	return a.wouldChange("make due", operate.Report{Changed: n})
}

func (a *app) outboxCancelCommand() *cobra.Command {
	var c outboxChange
	cmd := a.outboxChangeCommand("cancel", &c, true, func(ctx context.Context, m *outbox.Messages, who operate.Act, ids []int64) error {
		switch {
		case len(ids) > 0 && !c.plan.Force && c.plan.Rate == 0:
			err := m.Cancel(ctx, who, ids...)
			if errors.Is(err, operate.ErrNeedsForce) {
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
		return a.changed(ctx, "Cancelled", &c, func() (operate.Report, error) { return m.CancelMatching(ctx, who, c.filter, c.plan) })
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

func (a *app) wouldChange(verb string, r operate.Report) error {
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

func (a *app) changed(ctx context.Context, verb string, c *outboxChange, change func() (operate.Report, error)) error {
	p := a.progress()
	c.plan.Progress = func(r operate.Report) { p.line(counted(r.Changed, "message was changed", "messages were changed")) }
	report, err := change()
	p.end()
	return a.done(ctx, verb, changeJSON{
		Matched: report.Changed + len(report.Skipped), Changed: report.Changed, Skipped: report.Skipped, forced: c.plan.Force,
	}, "run the command again for the others", missing(c.filter.IDs, report.Changed+len(report.Skipped), err))
}

type pausedJSON struct {
	Pauses []pauseJSON `json:"pauses"`
}

type pauseJSON struct {
	Topic  string    `json:"topic,omitempty"`
	Tenant string    `json:"tenant,omitempty"`
	Actor  string    `json:"actor"`
	Why    string    `json:"why"`
	Since  time.Time `json:"since"`
}

type scopeJSON struct {
	Topic  string `json:"topic,omitempty"`
	Tenant string `json:"tenant,omitempty"`
}

func scopeText(topic, tenant string) string {
	if tenant != "" {
		return fmt.Sprintf("tenant %q", tenant)
	}
	return fmt.Sprintf("topic %q", topic)
}

func (a *app) pauseCommand(
	use, done string, needsWhy bool, change func(ctx context.Context, m *outbox.Messages, who operate.Act, scope outbox.Scope) error,
) *cobra.Command {
	var scope outbox.Scope
	cmd := &cobra.Command{Use: use, Args: noArgs}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (scope.Topic == "") == (scope.Tenant == "") {
			return usagef("give --topic or --tenant")
		}
		if err := a.needWhy(needsWhy); err != nil {
			return err
		}
		who, err := a.who()
		if err != nil {
			return err
		}
		return with(a, outbox.New, nil, func(ctx context.Context, m *outbox.Messages, _ []string) error {
			if err := change(ctx, m, who, scope); err != nil {
				return err
			}
			return a.print(scopeJSON(scope), fmt.Sprintf("%s %s.\n", done, scopeText(scope.Topic, scope.Tenant)))
		})(cmd, args)
	}
	cmd.Flags().StringVar(&scope.Topic, "topic", "", "the topic")
	cmd.Flags().StringVar(&scope.Tenant, "tenant", "", "the tenant")
	cmd.Flags().StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}

func (a *app) outboxPauseCommand() *cobra.Command {
	cmd := a.pauseCommand("pause", "Paused", true,
		func(ctx context.Context, m *outbox.Messages, who operate.Act, scope outbox.Scope) error {
			return m.Pause(ctx, who, scope)
		})
	cmd.Short = "Send no messages of a topic or a tenant until they are resumed; needs --why"
	cmd.Long = `Send no messages of a topic or a tenant until they are resumed. Later messages of the
same ordering keys wait too. All others are sent. Forwarders see the pause when they
next read the outbox, usually within a quarter of a second.

  once outbox pause --topic mails --why "the mail server is down"
  once outbox resume --topic mails`
	return cmd
}

func (a *app) outboxResumeCommand() *cobra.Command {
	cmd := a.pauseCommand("resume", "Resumed", false,
		func(ctx context.Context, m *outbox.Messages, who operate.Act, scope outbox.Scope) error {
			err := m.Resume(ctx, who, scope)
			if errors.Is(err, outbox.ErrNotPaused) {
				return fmt.Errorf("%w (once outbox paused lists the pauses)", err)
			}
			return err
		})
	cmd.Short = "Send the messages of a paused topic or tenant again"
	return cmd
}

func (a *app) outboxPausedCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "paused",
		Short: "List the paused topics and tenants: since when, by whom and why",
		Args:  noArgs,
		RunE: with(a, outbox.New, nil, func(ctx context.Context, m *outbox.Messages, _ []string) error {
			pauses, err := m.ListPaused(ctx)
			if err != nil {
				return err
			}
			out := pausedJSON{Pauses: []pauseJSON{}}
			var rows [][]string
			for _, p := range pauses {
				out.Pauses = append(out.Pauses, pauseJSON{p.Topic, p.Tenant, p.Actor, p.Why, p.Since})
				rows = append(rows, []string{p.Topic, p.Tenant, at(p.Since), p.Actor, p.Why})
			}
			if len(rows) == 0 {
				return a.print(out, "Nothing is paused.\n")
			}
			return a.print(out, table(a.width, []string{"TOPIC", "TENANT", "SINCE (UTC)", "BY", "WHY"}, rows))
		}),
	}
}

type blockedJSON struct {
	Keys []blockedKeyJSON `json:"keys"`
	Next string           `json:"next,omitempty"` // --after of the next page
}

type blockedKeyJSON struct {
	OrderingKey string    `json:"ordering_key"`
	Head        int64     `json:"head"`             // ID of the message, or position of the dead letter, behind which the other messages wait
	Dead        bool      `json:"dead"`             // whether the head is a dead letter
	Letter      int64     `json:"letter,omitempty"` // ID of the dead letter
	Reason      string    `json:"reason"`
	BlockedAt   time.Time `json:"blocked_at"`
	MessageID   string    `json:"message_id,omitempty"`
	Topic       string    `json:"topic,omitempty"`
	Attempts    int       `json:"attempts,omitempty"`
	DueAt       time.Time `json:"due_at,omitzero"`
}

func (a *app) outboxBlockedCommand() *cobra.Command {
	filter := outbox.KeyFilter{Limit: 100}
	cmd := &cobra.Command{
		Use:   "blocked",
		Short: "List the blocked ordering keys, and the message for which each waits",
		Long: `List the blocked ordering keys, and the message for which each waits: its head. If the
head is a dead letter, the others wait until it is replayed or discarded, or until
once dead release releases the key.`,
		Args: noArgs,
		RunE: with(a, outbox.New, nil, func(ctx context.Context, m *outbox.Messages, _ []string) error {
			keys, err := m.BlockedKeys(ctx, filter)
			if err != nil {
				return err
			}
			out := blockedJSON{Keys: []blockedKeyJSON{}}
			var rows [][]string
			for _, k := range keys {
				out.Keys = append(out.Keys, blockedKeyJSON(k))
				head := fmt.Sprint(k.Head)
				if k.Dead {
					head = fmt.Sprintf("dead letter %d", k.Letter)
				}
				rows = append(rows, []string{
					k.OrderingKey, head, k.Reason, at(k.BlockedAt), k.Topic, fmt.Sprint(k.Attempts), at(k.DueAt), k.MessageID,
				})
			}
			if len(rows) == 0 {
				return a.print(out, "No ordering key is blocked.\n")
			}
			text := table(a.width, []string{"ORDERING KEY", "HEAD", "REASON", "SINCE (UTC)", "TOPIC", "TRIES", "NEXT TRY (UTC)", "MESSAGE"}, rows)
			if i := slices.IndexFunc(keys, func(k outbox.BlockedKey) bool { return k.Dead }); i >= 0 {
				dead := status.DeadKey{OrderingKey: keys[i].OrderingKey, Letter: keys[i].Letter}
				text += "\nTo unblock the key of a dead letter: " + plain(dead.Remedy()) + ".\n"
			}
			if len(rows) == filter.Limit {
				out.Next = keys[len(keys)-1].OrderingKey
				text += fmt.Sprintf("\nThere may be more: add --after %q\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	cmd.Flags().StringVar(&filter.OrderingKey, "ordering-key", "", "only this key")
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of keys")
	cmd.Flags().StringVar(&filter.AfterKey, "after", "", "begin after this key")
	return cmd
}
