package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/poison"
)

// poisonAct returns the values for the audit log: the name of the person and the reason.
func (a *app) poisonAct() (poison.Act, error) {
	actor, err := a.actor()
	return poison.Act{Actor: actor, Why: a.settings.why}, err
}

func (a *app) quarantineReplayCommand() *cobra.Command {
	var (
		config poison.Config
		filter poison.Filter
		plan   poison.Plan
		to     act
	)
	cmd := &cobra.Command{
		Use:   "replay [ID...]",
		Short: "Give entries back to the consumers that failed them",
		Long: `Give entries back to the consumers that failed them. Entries that you name by ID are
replayed at once, and the command does not wait for their consumer. With filters,
the command says which entries it would replay. With --yes, it replays them, waits until
every message was handled or has failed again, and shows the progress. Ctrl-C pauses
such a replay, and once replays resume continues it.

  once quarantine replay 17 18
  once quarantine replay --group 5d0e… --canary 10 --rate 50 --stop-on-failure --yes`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := to.selected(cmd, args, quarantineConditions)
		if err != nil {
			return err
		}
		planned := slices.ContainsFunc([]string{"canary", "rate", "window", "stop-on-failure", "force"}, cmd.Flags().Changed)
		filter.IDs, filter.All = ids, to.all
		return a.withQuarantine(&config, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			who, err := a.poisonAct()
			if err != nil {
				return err
			}
			switch {
			case len(ids) > 0 && !planned:
				err := q.Replay(ctx, who, ids...)
				if err != nil {
					return absent(err)
				}
				return a.done(ctx, "Replayed", changeJSON{Matched: len(ids), Changed: len(ids)}, "", nil)
			case len(ids) == 0 && !to.yes:
				groups, err := q.DryRun(ctx, filter, plan)
				if err != nil {
					return err
				}
				return a.dryRun("replay", quarantineGroupsOf(groups))
			}
			progress := a.progress()
			plan.Progress = progress.show
			replay, err := q.ReplayMatching(ctx, who, filter, plan)
			progress.end()
			return a.replayed(replay, absent(err))
		})(cmd, args)
	}
	addQuarantineFilter(cmd, &filter)
	a.addActFlags(cmd, &to)
	flags := cmd.Flags()
	flags.Var(atLeast(&filter.Limit, 1), "limit", "largest number of entries to replay")
	flags.Var(atLeast(&plan.Canary, 1), "canary", "replay so many first; the others only if these succeed")
	flags.Var(atLeast(&plan.Rate, 1), "rate", "most messages a second")
	flags.Var(atLeast(&plan.Window, 1), "window", "most replayed messages that wait for their handler at a time")
	flags.BoolVar(&plan.StopOnFailure, "stop-on-failure", false, "stop when a replayed message fails again")
	flags.BoolVar(&plan.Force, "force", false, "also run messages that the consumer has handled already")
	flags.BoolVar(&config.ReplayToAbsent, "to-absent", false, "also replay to consumers that no process runs")
	return cmd
}

// absent adds advice to an error that means that a consumer is not running. It returns
// other errors unchanged.
func absent(err error) error {
	if errors.Is(err, poison.ErrNotRunning) {
		return fmt.Errorf("%w (start the consumer, or add --to-absent)", err)
	}
	return err
}

func (a *app) quarantineDiscardCommand() *cobra.Command {
	var (
		filter poison.Filter
		to     act
	)
	cmd := &cobra.Command{
		Use:   "discard [ID...]",
		Short: "End entries for good; needs --why",
		Long: `End entries for good. Entries that you name by ID are discarded at once. With filters,
the command says which entries it would discard. With --yes, it discards them.`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := to.selected(cmd, args, quarantineConditions)
		if err != nil {
			return err
		}
		if err := a.needWhy(len(ids) > 0 || to.yes); err != nil {
			return err
		}
		filter.All = to.all
		return a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			who, err := a.poisonAct()
			if err != nil {
				return err
			}
			return a.discard(ctx, ids, to.yes, discard{
				named: func() error { return q.Discard(ctx, who, ids...) },
				groups: func() ([]groupJSON, error) {
					groups, err := q.DryRun(ctx, filter, poison.Plan{})
					return quarantineGroupsOf(groups), err
				},
				matching: func() (int, error) { return q.DiscardMatching(ctx, who, filter) },
			})
		})(cmd, args)
	}
	addQuarantineFilter(cmd, &filter)
	a.addActFlags(cmd, &to)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of entries to discard")
	return cmd
}
