package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/deadletter"
)

func deadGroupsOf(groups []deadletter.Group) []groupJSON {
	all := []groupJSON{}
	for _, g := range groups {
		all = append(all, groupJSON{
			Group: g.Fingerprint, Count: g.Count, More: g.More, Topics: g.Topics, Reason: g.Reason, Error: g.Error,
			FirstFailedAt: g.FirstFailedAt, LastFailedAt: g.LastFailedAt, Skipped: g.Skipped,
		})
	}
	return all
}

func (a *app) deadGroupsCommand() *cobra.Command {
	filter := deadletter.Filter{Limit: 100}
	cmd := &cobra.Command{
		Use:   "groups",
		Short: "List the groups of dead letters with the same reason and error",
		Args:  noArgs,
		RunE: a.withDead(&deadletter.Config{}, func(ctx context.Context, l *deadletter.Letters, _ []string) error {
			page, err := l.Groups(ctx, filter)
			if err != nil {
				return err
			}
			out := groupsJSON{Groups: deadGroupsOf(page.Groups), Partial: page.Partial}
			if len(page.Groups) == 0 {
				return a.print(out, "No dead letter matches.\n"+notSearched(page.Partial))
			}
			text := groupTable(a.width, out.Groups) + notSearched(page.Partial)
			if n := len(page.Groups); n == filter.Limit {
				out.Next = page.Groups[n-1].Fingerprint
				text += fmt.Sprintf("\nThere may be more: add --after %q\n", out.Next)
			}
			return a.print(out, text)
		}),
	}
	addDeadFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of groups")
	cmd.Flags().StringVar(&filter.AfterGroup, "after", "", "begin after this group")
	return cmd
}

func (a *app) deadCountCommand() *cobra.Command {
	var filter deadletter.Filter
	cmd := &cobra.Command{
		Use:   "count",
		Short: "Count dead letters",
		Args:  noArgs,
		RunE: a.withDead(&deadletter.Config{}, func(ctx context.Context, l *deadletter.Letters, _ []string) error {
			n, f := 0, filter
			for {
				part, err := l.Count(ctx, f)
				if err != nil {
					return err
				}
				if n, f.AfterID = n+part.N, part.Next; part.Next == 0 {
					return a.print(countJSON{n}, fmt.Sprintln(n))
				}
			}
		}),
	}
	addDeadFilter(cmd, &filter)
	return cmd
}
