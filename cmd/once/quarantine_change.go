package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
)

func (a *app) quarantineReplayCommand() *cobra.Command {
	var (
		config operate.Config
		filter operate.Filter
		plan   operate.Plan
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
		return a.withTables(func(ctx context.Context, db database, _ []string) error {
			config.Schema, config.WithoutContent = db.tables, db.withoutContent
			q, err := quarantine.New(db.DB, config)
			if err != nil {
				return err
			}
			who, err := a.who()
			if err != nil {
				return err
			}
			if err := a.notePaused(ctx, db, filter.Consumer); err != nil {
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
				return a.dryRun("replay", groupsOf(groups))
			}
			progress := a.progress()
			plan.Progress = progress.show
			replay, err := q.ReplayMatching(ctx, who, filter, plan)
			progress.end()
			return a.replayed(replay, ids, absent(err))
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

func absent(err error) error {
	if errors.Is(err, quarantine.ErrNotRunning) {
		return fmt.Errorf("%w (start the consumer, or add --to-absent)", err)
	}
	return err
}

func (a *app) quarantineDiscardCommand() *cobra.Command {
	var (
		filter operate.Filter
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
		return with(a, quarantine.New, nil, func(ctx context.Context, q *quarantine.Entries, _ []string) error {
			who, err := a.who()
			if err != nil {
				return err
			}
			return a.discard(ctx, ids, to.yes, discard{
				named: func() error { return q.Discard(ctx, who, ids...) },
				groups: func() ([]groupJSON, error) {
					groups, err := q.DryRun(ctx, filter, operate.Plan{})
					return groupsOf(groups), err
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

type editJSON struct {
	ID         int64 `json:"id"` // ID of the new entry
	EditedFrom int64 `json:"edited_from"`
}

// edit contains the changes that "once quarantine edit" makes in a message.
type edit struct {
	payload     []byte // new payload; nil keeps the old payload
	set, remove []string
	id          string
}

func (e edit) check(file string) error {
	for _, pair := range e.set {
		if key, _, ok := strings.Cut(pair, "="); !ok || key == "" {
			return usagef("--set %q: must be name=value", pair)
		}
	}
	if file == "" && len(e.set)+len(e.remove) == 0 && e.id == "" {
		return usagef("nothing to change: use --payload, --set, --remove or --new-id")
	}
	return nil
}

func (e edit) apply(msg *message.Message) error {
	if e.payload != nil {
		msg.Payload = e.payload
	}
	for _, pair := range e.set {
		key, text, _ := strings.Cut(pair, "=")
		msg.Metadata.Set(key, text)
	}
	for _, key := range e.remove {
		if _, ok := msg.Metadata[key]; !ok {
			return fmt.Errorf("the message has no metadata %q to remove", key)
		}
		delete(msg.Metadata, key)
	}
	if e.id != "" {
		msg.UUID = e.id
	}
	return nil
}

func (a *app) quarantineEditCommand() *cobra.Command {
	var (
		config operate.Config
		change edit
		file   string
		opts   quarantine.EditOptions
	)
	cmd := &cobra.Command{
		Use:   "edit ID",
		Short: "Replace an entry by a changed message, and replay it; needs --why",
		Long: `Replace an entry by a changed message, which has a new id and is handled at once. The
old entry is discarded.

  once quarantine show 17 --json | jq -j .payload > body.json
  once quarantine edit 17 --payload body.json --why "the amount was negative"`,
		Args: oneID,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(a.needWhy(true), change.check(file)); err != nil {
			return err
		}
		if file != "" {
			payload, err := a.read(file)
			if err != nil {
				return err
			}
			change.payload = payload
		}
		return with(a, quarantine.New, &config, func(ctx context.Context, q *quarantine.Entries, args []string) error {
			who, err := a.who()
			if err != nil {
				return err
			}
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			id, err := q.Edit(ctx, who, ids[0], change.apply, opts)
			if err != nil {
				return absent(err)
			}
			state := "its consumer handles it now"
			if opts.KeepQuarantined {
				state = "it stays in quarantine"
			}
			return a.print(editJSON{ID: id, EditedFrom: ids[0]}, fmt.Sprintf("Entry %d replaces entry %d; %s.\n", id, ids[0], state))
		})(cmd, args)
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "payload", "", "file with the new payload, or - for standard input")
	flags.StringArrayVar(&change.set, "set", nil, "metadata to set, as name=value; may be repeated")
	flags.StringArrayVar(&change.remove, "remove", nil, "metadata to remove; may be repeated")
	flags.StringVar(&change.id, "new-id", "", "id of the new message (default: a new one)")
	flags.BoolVar(&opts.KeepQuarantined, "keep", false, "leave the new entry in quarantine, for a later replay")
	flags.BoolVar(&config.ReplayToAbsent, "to-absent", false, "also if no process runs the consumer")
	flags.StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}
