package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/pending"
)

// pausedJSON is the JSON output of "once outbox paused". The output of "once status"
// contains the same list.
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

// scopeJSON is the JSON output of "once outbox pause" and "once outbox resume".
type scopeJSON struct {
	Topic  string `json:"topic,omitempty"`
	Tenant string `json:"tenant,omitempty"`
}

// scopeText returns a topic or a tenant as text.
func scopeText(topic, tenant string) string {
	if tenant != "" {
		return fmt.Sprintf("tenant %q", tenant)
	}
	return fmt.Sprintf("topic %q", topic)
}

// pauseCommand returns a command that pauses or resumes one topic or tenant. The caller
// adds the help texts. The function change makes the change. The parameter done is the
// first word of the output, such as "Paused".
func (a *app) pauseCommand(
	use, done string, needsWhy bool, change func(ctx context.Context, m *pending.Messages, who pending.Act, scope pending.Scope) error,
) *cobra.Command {
	var scope pending.Scope
	cmd := &cobra.Command{Use: use, Args: noArgs}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (scope.Topic == "") == (scope.Tenant == "") {
			return usagef("give --topic or --tenant")
		}
		if err := a.needWhy(needsWhy); err != nil {
			return err
		}
		actor, err := a.actor()
		if err != nil {
			return err
		}
		return a.withPending(func(ctx context.Context, m *pending.Messages, _ []string) error {
			if err := change(ctx, m, pending.Act{Actor: actor, Why: a.settings.why}, scope); err != nil {
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
		func(ctx context.Context, m *pending.Messages, who pending.Act, scope pending.Scope) error {
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
		func(ctx context.Context, m *pending.Messages, who pending.Act, scope pending.Scope) error {
			err := m.Resume(ctx, who, scope)
			if errors.Is(err, pending.ErrNotPaused) {
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
		RunE: a.withPending(func(ctx context.Context, m *pending.Messages, _ []string) error {
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
