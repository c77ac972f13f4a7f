package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/parked"
)

// parkedConditions are the flags of addParkedFilter that select messages.
var parkedConditions = []string{
	"consumer", "topic", "message-id", "ordering-key", "tenant", "state", "stored-after", "stored-before",
}

func addParkedFilter(cmd *cobra.Command, f *parked.Filter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Consumer, "consumer", "", "only of this consumer")
	flags.StringVar(&f.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.MessageID, "message-id", "", "only of the message with this id")
	flags.StringVar(&f.OrderingKey, "ordering-key", "", "only of this ordering key")
	flags.StringVar(&f.Tenant, "tenant", "", "only of this tenant")
	flags.Var(oneOf((*string)(&f.State), string(parked.Waiting), string(parked.Held), string(parked.Quarantined), string(parked.Resolved),
		string(parked.Discarded)), "state", "only in this state")
	flags.Var(moment(&f.CreatedAfter), "stored-after", "only stored at this time or later: 2026-05-01T12:00:00Z, or 2h ago as 2h")
	flags.Var(moment(&f.CreatedBefore), "stored-before", "only stored before this time")
}

func (a *app) parkedCommand() *cobra.Command {
	return group("parked", "Messages in the consumers' database: find, run now, cancel, discard",
		a.parkedListCommand(), a.parkedShowCommand(), a.parkedCountCommand(),
		a.parkedRunCommand(), a.parkedCancelCommand(), a.parkedDiscardCommand())
}

// withParked works like withTables, but the function work gets the parked messages
// instead of the database.
func (a *app) withParked(work func(ctx context.Context, m *parked.Messages, args []string) error) func(*cobra.Command, []string) error {
	return a.withTables(func(ctx context.Context, db database, args []string) error {
		m, err := parked.New(db.DB, parked.Config{Schema: db.tables, WithoutContent: db.withoutContent})
		if err != nil {
			return err
		}
		return work(ctx, m, args)
	})
}

func (a *app) parkedListCommand() *cobra.Command {
	filter, after := parked.Filter{Limit: 100}, 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List parked messages, in the order of their IDs",
		Args:  noArgs,
		RunE: a.withParked(func(ctx context.Context, m *parked.Messages, _ []string) error {
			f := filter
			f.AfterID = int64(after)
			out := parkedListJSON{Messages: []parkedJSON{}}
			var rows [][]string
			for more := true; more && f.Limit > 0; more = out.Next > 0 {
				page, err := m.List(ctx, f)
				if err != nil {
					return err
				}
				for _, m := range page.Messages {
					out.Messages = append(out.Messages, parkedOf(&m))
					rows = append(rows, []string{
						fmt.Sprint(m.ID), m.Consumer, m.Topic, m.MessageID, string(m.State), waitsFor(&m), fmt.Sprint(m.Attempts), m.Error,
					})
				}
				out.Next, f.AfterID, f.Limit = page.Next, page.Next, f.Limit-len(page.Messages)
			}
			if len(rows) == 0 {
				return a.print(out, "No parked message matches.\n")
			}
			text := table(a.width, []string{"ID", "CONSUMER", "TOPIC", "MESSAGE", "STATE", "WAITS FOR (UTC)", "TRIES", "ERROR"}, rows)
			if out.Next > 0 {
				text += fmt.Sprintf("\nThere may be more: add --after %d\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	addParkedFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of messages")
	cmd.Flags().Var(atLeast(&after, 0), "after", "begin after this ID")
	return cmd
}

func (a *app) parkedCountCommand() *cobra.Command {
	var filter parked.Filter
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count parked messages",
		Args:  noArgs,
		RunE: a.withParked(func(ctx context.Context, m *parked.Messages, _ []string) error {
			f, n := filter, 0
			for more := true; more; more = f.AfterID > 0 {
				part, err := m.Count(ctx, f)
				if err != nil {
					return err
				}
				n, f.AfterID = n+part.N, part.Next
			}
			return a.print(countJSON{n}, fmt.Sprintln(n))
		}),
	}
	addParkedFilter(cmd, &filter)
	return cmd
}
