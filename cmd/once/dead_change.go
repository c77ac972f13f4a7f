package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
)

type outboxReplay struct {
	config operate.Config
	filter operate.Filter
	plan   operate.Plan
	act    act
}

func (r *outboxReplay) addFlags(flags *pflag.FlagSet) {
	flags.Var(atLeast(&r.filter.Limit, 1), "limit", "largest number of messages to replay")
	flags.Var(atLeast(&r.plan.Rate, 1), "rate", "most messages a second")
	flags.BoolVar(&r.plan.Force, "force", false, "also replay messages that a consumer could handle a second time")
	flags.Var(duration(&r.config.InboxRetention), "inbox-retention", "how long all consumers remember ids (default: 7d)")
}

// outboxReplayCommand replays messages into the outbox. The caller adds the help texts and the
// filters. run returns the function that replays the messages with these IDs.
func (a *app) outboxReplayCommand(
	r *outboxReplay, conditions []string, run func(who operate.Act, ids []int64) func(*cobra.Command, []string) error,
) *cobra.Command {
	cmd := &cobra.Command{Use: "replay [ID...]", Args: cobra.ArbitraryArgs}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := r.act.selected(cmd, args, conditions)
		if err != nil {
			return err
		}
		who, err := a.who()
		if err != nil {
			return err
		}
		r.filter.IDs, r.filter.All = ids, r.act.all
		return run(who, ids)(cmd, args)
	}
	a.addActFlags(cmd, &r.act)
	r.addFlags(cmd.Flags())
	return cmd
}

type replayable interface {
	Replay(ctx context.Context, act operate.Act, ids ...int64) error
	ReplayMatching(ctx context.Context, act operate.Act, f operate.Filter, plan operate.Plan) (operate.Replay, error)
	Resume(ctx context.Context, act operate.Act, id int64, progress func(operate.Report)) (operate.Replay, error)
}

func (a *app) replayToOutbox(
	ctx context.Context, from replayable, who operate.Act, ids []int64, r *outboxReplay,
	groups func() ([]groupJSON, error),
) error {
	return a.replay(ctx, ids, r.plan.Force || r.plan.Rate > 0, r.act.yes, replay{
		named:  func() error { return from.Replay(ctx, who, ids...) },
		groups: groups,
		matching: func(progress func(operate.Report)) (operate.Replay, error) {
			r.plan.Progress = progress
			return from.ReplayMatching(ctx, who, r.filter, r.plan)
		},
	})
}

//nolint:dupl // dead letters and sent messages have different types and texts
func (a *app) deadReplayCommand() *cobra.Command {
	var r outboxReplay
	cmd := a.outboxReplayCommand(&r, deadConditions, func(who operate.Act, ids []int64) func(*cobra.Command, []string) error {
		return with(a, dead.New, &r.config, func(ctx context.Context, l *dead.Letters, _ []string) error {
			return a.replayToOutbox(ctx, l, who, ids, &r, func() ([]groupJSON, error) {
				groups, err := l.DryRun(ctx, r.filter, r.plan)
				return groupsOf(groups), err
			})
		})
	})
	cmd.Short = "Put dead letters back into the outbox"
	cmd.Long = `Put dead letters back into the outbox, from where the forwarder sends them. Letters that
you name by ID are replayed at once. With filters, the command says which letters it
would replay. With --yes, it replays them. Letters that need --force are left alone.

  once dead replay 17 18
  once dead replay --group 9fd80eaee259311e --rate 100 --yes`
	addDeadFilter(cmd, &r.filter)
	return cmd
}

func (a *app) deadDiscardCommand() *cobra.Command {
	var (
		filter operate.Filter
		to     act
	)
	cmd := &cobra.Command{
		Use:   "discard [ID...]",
		Short: "Delete dead letters for good; needs --why",
		Long: `Delete dead letters for good. Letters that you name by ID are deleted at once. With
filters, the command says which letters it would delete. With --yes, it deletes them.`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := to.selected(cmd, args, deadConditions)
		if err != nil {
			return err
		}
		if err := a.needWhy(len(ids) > 0 || to.yes); err != nil {
			return err
		}
		filter.All = to.all
		return with(a, dead.New, nil, func(ctx context.Context, l *dead.Letters, _ []string) error {
			who, err := a.who()
			if err != nil {
				return err
			}
			return a.discard(ctx, ids, to.yes, discard{
				named: func() error { return l.Discard(ctx, who, ids...) },
				groups: func() ([]groupJSON, error) {
					groups, err := l.DryRun(ctx, filter, operate.Plan{Force: true})
					return groupsOf(groups), err
				},
				matching: func() (int, error) { return l.DiscardMatching(ctx, who, filter) },
			})
		})(cmd, args)
	}
	addDeadFilter(cmd, &filter)
	a.addActFlags(cmd, &to)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of letters to discard")
	return cmd
}

type releaseJSON struct {
	OrderingKey string `json:"ordering_key"`
}

func (a *app) deadReleaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release KEY",
		Short: "Send the messages of an ordering key that a dead letter blocks",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef("%s needs one ordering key", cmd.CommandPath())
			}
			return nil
		},
		RunE: with(a, dead.New, nil, func(ctx context.Context, l *dead.Letters, args []string) error {
			who, err := a.who()
			if err != nil {
				return err
			}
			if err := l.Release(ctx, who, args[0]); err != nil {
				return err
			}
			return a.print(releaseJSON{args[0]}, fmt.Sprintf("Released ordering key %q; its dead letter stays.\n", args[0]))
		}),
	}
	cmd.Flags().StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}

func (a *app) deadExportCommand() *cobra.Command {
	var (
		filter operate.Filter
		file   string
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write dead letters as JSON lines, with their messages",
		Long: `Write dead letters as JSON lines, with their messages: protect the file as you protect
the messages. Without filters all letters are written.`,
		Args: noArgs,
		RunE: with(a, dead.New, nil, func(ctx context.Context, l *dead.Letters, _ []string) error {
			return a.export(file, func(w io.Writer) (int, error) { return l.Export(ctx, filter, w) })
		}),
	}
	addDeadFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of letters")
	cmd.Flags().StringVar(&file, "file", "", "new file to write (default: standard output)")
	return cmd
}
