package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watermill-once/once/deadletter"
)

// outboxConditions are the filters that dead letters and sent messages share.
var outboxConditions = []string{
	"topic", "message-id", "ordering-key", "tenant", "aggregate-type", "aggregate-id", "event-type",
}

var (
	deadConditions = append([]string{"reason", "group", "failed-after", "failed-before"}, outboxConditions...)
	sentConditions = append([]string{"sent-after", "sent-before"}, outboxConditions...)
)

func addOutboxFilter(flags *pflag.FlagSet, f *deadletter.Filter) {
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only the message with this id")
	flags.StringVar(&f.OrderingKey, "ordering-key", "", "only of this ordering key")
	flags.StringVar(&f.Tenant, "tenant", "", "only of this tenant")
	flags.StringVar(&f.AggregateType, "aggregate-type", "", "only about aggregates of this type")
	flags.StringVar(&f.AggregateID, "aggregate-id", "", "only about the aggregate with this id")
	flags.StringVar(&f.EventType, "event-type", "", "only of this event type")
}

func addDeadFilter(cmd *cobra.Command, f *deadletter.Filter) {
	flags := cmd.Flags()
	addOutboxFilter(flags, f)
	flags.Var(oneOf(&f.Reason, deadletter.ReasonExhausted, deadletter.ReasonUnacceptable, deadletter.ReasonMalformed,
		deadletter.ReasonInvalid, deadletter.ReasonCancelled), "reason", "only with this reason")
	flags.StringVar(&f.Fingerprint, "group", "", `only of this group, as in "exhausted: no queue"; see once dead groups`)
	flags.Var(moment(&f.FailedAfter), "failed-after", "only given up at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.FailedBefore), "failed-before", "only given up before this time")
}

func (a *app) deadCommand() *cobra.Command {
	return group("dead", "Messages that the forwarder gave up on: find, replay, discard",
		a.deadGroupsCommand(), a.deadListCommand(), a.deadShowCommand(), a.deadCountCommand(), a.deadReplayCommand(),
		a.deadDiscardCommand(), a.deadReleaseCommand(), a.deadExportCommand())
}

// withDead works like withTables, but the function work gets the dead letters instead of
// the database.
func (a *app) withDead(
	config *deadletter.Config, work func(ctx context.Context, l *deadletter.Letters, args []string) error,
) func(*cobra.Command, []string) error {
	return a.withTables(func(ctx context.Context, db database, args []string) error {
		config.Schema, config.WithoutContent = db.tables, db.withoutContent
		letters, err := deadletter.New(db.DB, *config)
		if err != nil {
			return err
		}
		return work(ctx, letters, args)
	})
}

func (a *app) deadListCommand() *cobra.Command {
	filter, after := deadletter.Filter{Limit: 100}, 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, in the order of their IDs",
		Args:  noArgs,
		RunE: a.withDead(&deadletter.Config{}, func(ctx context.Context, l *deadletter.Letters, _ []string) error {
			f := filter
			f.AfterID = int64(after)
			out := lettersJSON{Letters: []letterJSON{}}
			var rows [][]string
			for more := true; more && f.Limit > 0; more = out.Next > 0 {
				page, err := l.List(ctx, f)
				if err != nil {
					return err
				}
				for _, letter := range page.Letters {
					out.Letters = append(out.Letters, letterOf(&letter))
					rows = append(rows, []string{
						fmt.Sprint(letter.ID), letter.Topic, letter.MessageID, at(letter.LastFailedAt), fmt.Sprint(letter.Attempts),
						letter.Reason, letter.Error,
					})
				}
				out.Next, f.AfterID, f.Limit = page.Next, page.Next, f.Limit-len(page.Letters)
			}
			if len(rows) == 0 {
				return a.print(out, "No dead letter matches.\n")
			}
			text := table(a.width, []string{"ID", "TOPIC", "MESSAGE", "DIED (UTC)", "TRIES", "REASON", "ERROR"}, rows)
			if out.Next > 0 {
				text += fmt.Sprintf("\nThere may be more: add --after %d\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	addDeadFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of letters")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}
