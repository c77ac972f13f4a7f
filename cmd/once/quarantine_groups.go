package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/poison"
)

func quarantineGroupsOf(groups []poison.Group) []groupJSON {
	all := []groupJSON{}
	for _, g := range groups {
		all = append(all, groupJSON{
			Group: g.Fingerprint, Count: g.Count, More: g.More, Consumers: g.Consumers, Topics: g.Topics, Reason: g.Reason,
			ErrorType: g.ErrorType, Error: g.Error, FirstFailedAt: g.FirstFailedAt, LastFailedAt: g.LastFailedAt,
		})
	}
	return all
}

func (a *app) quarantineGroupsCommand() *cobra.Command {
	filter := poison.Filter{Limit: 100}
	cmd := &cobra.Command{
		Use:   "groups",
		Short: "List the failure groups: entries with one cause",
		Args:  noArgs,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			page, err := q.Groups(ctx, filter)
			if err != nil {
				return err
			}
			out := groupsJSON{Groups: quarantineGroupsOf(page.Groups), Partial: page.Partial}
			if len(page.Groups) == 0 {
				return a.print(out, "No message in quarantine matches.\n"+notSearched(page.Partial))
			}
			text := groupTable(a.width, out.Groups) + notSearched(page.Partial)
			if n := len(page.Groups); n == filter.Limit {
				out.Next = page.Groups[n-1].Fingerprint
				text += "\nThere may be more: add --after " + out.Next + "\n"
			}
			return a.print(out, text)
		}),
	}
	addQuarantineFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of groups")
	cmd.Flags().StringVar(&filter.AfterGroup, "after", "", "begin after this group")
	return cmd
}

func (a *app) quarantineCountCommand() *cobra.Command {
	var filter poison.Filter
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count entries",
		Args:  noArgs,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			n, f := 0, filter
			for {
				part, err := q.Count(ctx, f)
				if err != nil {
					return err
				}
				if n, f.AfterID = n+part.N, part.Next; part.Next == 0 {
					return a.print(countJSON{n}, fmt.Sprintln(n))
				}
			}
		}),
	}
	addQuarantineFilter(cmd, &filter)
	return cmd
}
