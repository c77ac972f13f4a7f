package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/poison"
)

// quarantineConditions are the flags of addQuarantineFilter that select entries.
var quarantineConditions = []string{
	"consumer", "topic", "message-id", "tenant", "aggregate-type", "aggregate-id", "event-type",
	"reason", "error-type", "group", "failed-after", "failed-before",
}

func addQuarantineFilter(cmd *cobra.Command, f *poison.Filter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Consumer, "consumer", "", "only of this consumer")
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only of the message with this id")
	flags.StringVar(&f.Tenant, "tenant", "", "only of this tenant")
	flags.StringVar(&f.AggregateType, "aggregate-type", "", "only about aggregates of this type")
	flags.StringVar(&f.AggregateID, "aggregate-id", "", "only about the aggregate with this id")
	flags.StringVar(&f.EventType, "event-type", "", "only of this event type")
	flags.Var(oneOf(&f.Reason, poison.ReasonExhausted, poison.ReasonFailed, poison.ReasonPermanent, poison.ReasonCrashed,
		poison.ReasonInvalidID, poison.ReasonCollision, poison.ReasonUndecodable, poison.ReasonGap, poison.ReasonStale,
		poison.ReasonCancelled),
		"reason", "only with this reason")
	flags.StringVar(&f.ErrorType, "error-type", "", "only with this Go type of the error")
	flags.StringVar(&f.Fingerprint, "group", "", "only of this failure group, see once quarantine groups")
	flags.Var(moment(&f.FailedAfter), "failed-after", "only last failed at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.FailedBefore), "failed-before", "only last failed before this time")
}

func (a *app) quarantineCommand() *cobra.Command {
	return group("quarantine", "Messages that consumers gave up on: find, replay, edit, discard",
		a.quarantineGroupsCommand(), a.quarantineListCommand(), a.quarantineShowCommand(), a.quarantineCountCommand(),
		a.quarantineReplayCommand(), a.quarantineEditCommand(), a.quarantineDiscardCommand(),
		a.quarantineExportCommand(), a.quarantineImportCommand())
}

// withQuarantine works like withTables, but the function work gets the quarantine instead
// of the database.
func (a *app) withQuarantine(
	config *poison.Config, work func(ctx context.Context, q *poison.Quarantine, args []string) error,
) func(*cobra.Command, []string) error {
	return a.withTables(func(ctx context.Context, db database, args []string) error {
		config.Schema, config.WithoutContent = db.tables, db.withoutContent
		q, err := poison.New(db.DB, *config)
		if err != nil {
			return err
		}
		return work(ctx, q, args)
	})
}

func (a *app) quarantineListCommand() *cobra.Command {
	filter := poison.Filter{Limit: 100}
	after, replayed := 0, false
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List entries, in the order of their IDs",
		Args:  noArgs,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			f := filter
			f.AfterID = int64(after)
			list := q.List
			if replayed {
				list = q.Replayed
			}
			out := entriesJSON{Entries: []entryJSON{}}
			var rows [][]string
			for more := true; more && f.Limit > 0; more = out.Next > 0 {
				page, err := list(ctx, f)
				if err != nil {
					return err
				}
				for _, e := range page.Entries {
					out.Entries = append(out.Entries, entryOf(&e))
					rows = append(rows, []string{
						fmt.Sprint(e.ID), e.Consumer, e.Topic, e.MessageID, at(e.LastFailedAt), fmt.Sprint(e.Attempts), e.Reason, e.State, e.Error,
					})
				}
				out.Next, f.AfterID, f.Limit = page.Next, page.Next, f.Limit-len(page.Entries)
			}
			if len(rows) == 0 && replayed {
				return a.print(out, "No replayed message waits for its consumer.\n")
			}
			if len(rows) == 0 {
				return a.print(out, "No message in quarantine matches.\n")
			}
			text := table(a.width, []string{"ID", "CONSUMER", "TOPIC", "MESSAGE", "FAILED (UTC)", "TRIES", "REASON", "STATE", "ERROR"}, rows)
			if out.Next > 0 {
				text += fmt.Sprintf("\nThere may be more: add --after %d\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	addQuarantineFilter(cmd, &filter)
	cmd.Flags().BoolVar(&replayed, "replayed", false, "list the replayed and edited messages that were not handled since, instead")
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of entries")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}
