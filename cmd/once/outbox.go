package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/pending"
)

// pendingConditions are the flags of addPendingFilter that select messages.
var pendingConditions = []string{"topic", "message-id", "ordering-key", "state", "written-after", "written-before"}

func addPendingFilter(cmd *cobra.Command, f *pending.Filter, state *string) {
	flags := cmd.Flags()
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only the message with this id")
	flags.StringVar(&f.OrderingKey, "ordering-key", "", "only of this ordering key")
	flags.Var(oneOf(state, string(pending.Due), string(pending.BackingOff), string(pending.Delayed), string(pending.Blocked)),
		"state", "only in this state: due, backing_off, delayed or blocked")
	flags.Var(moment(&f.CreatedAfter), "written-after", "only written at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.CreatedBefore), "written-before", "only written before this time")
}

func (a *app) outboxCommand() *cobra.Command {
	return group("outbox", "Messages that wait to be sent: find, try now, cancel, pause",
		a.outboxTopicsCommand(), a.outboxListCommand(), a.outboxShowCommand(), a.outboxCountCommand(), a.outboxBlockedCommand(),
		a.outboxRetryCommand(), a.outboxCancelCommand(),
		a.outboxPauseCommand(), a.outboxResumeCommand(), a.outboxPausedCommand())
}

// withPending works like withTables, but the function work gets the messages of the
// outbox instead of the database.
func (a *app) withPending(
	work func(ctx context.Context, m *pending.Messages, args []string) error,
) func(*cobra.Command, []string) error {
	return a.withTables(func(ctx context.Context, db database, args []string) error {
		messages, err := pending.New(db.DB, pending.Config{Schema: db.tables, WithoutContent: db.withoutContent})
		if err != nil {
			return err
		}
		return work(ctx, messages, args)
	})
}
