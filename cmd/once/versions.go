package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watermill-once/once/sequence"
)

type versionJSON struct {
	Consumer      string    `json:"consumer"`
	AggregateType string    `json:"aggregate_type"`
	AggregateID   string    `json:"aggregate_id"`
	Version       int64     `json:"version"`       // last applied version
	CompleteFrom  int64     `json:"complete_from"` // all versions from CompleteFrom to Version were applied
	AppliedAt     time.Time `json:"applied_at"`
}

type versionsJSON struct {
	Versions []versionJSON `json:"versions"`
	More     bool          `json:"more"` // whether --limit may have cut the list
}

// waitingJSON describes a message that is held because an earlier version is missing.
type waitingJSON struct {
	ID            int64     `json:"id"`
	Consumer      string    `json:"consumer"`
	Topic         string    `json:"topic"`
	MessageID     string    `json:"message_id"`
	AggregateType string    `json:"aggregate_type"`
	AggregateID   string    `json:"aggregate_id"`
	Version       int64     `json:"version"`
	Last          int64     `json:"last"`  // last applied version
	Known         bool      `json:"known"` // false if no version of the aggregate was applied
	EarlySince    time.Time `json:"early_since,omitzero"`
	DueAt         time.Time `json:"due_at"`
}

type waitingListJSON struct {
	Messages []waitingJSON `json:"messages"`
	More     bool          `json:"more"` // whether --limit may have cut the list
}

func (a *app) versionsCommand() *cobra.Command {
	return group("versions", "Versions of aggregates: what is applied, what waits for a missing version",
		a.versionsListCommand(), a.versionsWaitingCommand())
}

func addVersionFilter(flags *pflag.FlagSet, f *sequence.VersionFilter) {
	f.Limit = 100
	flags.StringVar(&f.Consumer, "consumer", "", "only of this consumer")
	flags.StringVar(&f.AggregateType, "aggregate-type", "", "only of aggregates of this type")
	flags.StringVar(&f.AggregateID, "aggregate-id", "", "only of the aggregate with this id")
	flags.Var(atLeast(&f.Limit, 1), "limit", "largest number of rows")
}

func (a *app) withVersions(work func(ctx context.Context, v *sequence.Versions) error) func(*cobra.Command, []string) error {
	return a.withTables(func(ctx context.Context, db database, _ []string) error {
		versions, err := sequence.NewVersions(db.DB, sequence.VersionsConfig{Schema: db.tables})
		if err != nil {
			return err
		}
		return work(ctx, versions)
	})
}

func cutOff(more bool) string {
	if !more {
		return ""
	}
	return "\nThere may be more: raise --limit, or filter\n"
}

func (a *app) versionsListCommand() *cobra.Command {
	var filter sequence.VersionFilter
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List aggregates, with the last version that each consumer has applied",
		Args:  noArgs,
		RunE: a.withVersions(func(ctx context.Context, v *sequence.Versions) error {
			all, err := v.List(ctx, filter, sequence.Version{})
			if err != nil {
				return err
			}
			out := versionsJSON{Versions: []versionJSON{}, More: len(all) == filter.Limit}
			var rows [][]string
			for _, r := range all {
				out.Versions = append(out.Versions, versionJSON(r))
				rows = append(rows, []string{
					r.Consumer, r.AggregateType, r.AggregateID, fmt.Sprint(r.Version), fmt.Sprint(r.CompleteFrom), at(r.AppliedAt),
				})
			}
			if len(rows) == 0 {
				return a.print(out, "No aggregate matches.\n")
			}
			head := []string{"CONSUMER", "TYPE", "AGGREGATE", "VERSION", "COMPLETE FROM", "APPLIED (UTC)"}
			return a.print(out, table(a.width, head, rows)+cutOff(out.More))
		}),
	}
	addVersionFilter(cmd.Flags(), &filter)
	return cmd
}

func (a *app) versionsWaitingCommand() *cobra.Command {
	var filter sequence.VersionFilter
	cmd := &cobra.Command{
		Use:   "waiting",
		Short: "List the messages that are held because an earlier version is missing",
		Args:  noArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (filter.AggregateType == "") != (filter.AggregateID == "") {
			return usagef("--aggregate-type and --aggregate-id belong together: give both or none")
		}
		return a.withVersions(func(ctx context.Context, v *sequence.Versions) error {
			all, err := v.Waiting(ctx, filter, sequence.Waiting{})
			if err != nil {
				return err
			}
			out := waitingListJSON{Messages: []waitingJSON{}, More: len(all) == filter.Limit}
			var rows [][]string
			for _, w := range all {
				out.Messages = append(out.Messages, waitingJSON{
					w.ID, w.Consumer, w.Topic, w.MessageID, w.AggregateType, w.AggregateID, w.Version, w.Last, w.Known, w.EarlySince, w.DueAt,
				})
				last := "none"
				if w.Known {
					last = fmt.Sprint(w.Last)
				}
				rows = append(rows, []string{
					w.Consumer, w.AggregateType, w.AggregateID, fmt.Sprint(w.Version), last, at(w.EarlySince), at(w.DueAt), w.MessageID,
				})
			}
			if len(rows) == 0 {
				return a.print(out, "No message waits for a missing version.\n")
			}
			return a.print(out, table(a.width, []string{
				"CONSUMER", "TYPE", "AGGREGATE", "VERSION", "LAST APPLIED", "SINCE (UTC)", "NEXT LOOK (UTC)", "MESSAGE",
			}, rows)+cutOff(out.More))
		})(cmd, args)
	}
	addVersionFilter(cmd.Flags(), &filter)
	return cmd
}
