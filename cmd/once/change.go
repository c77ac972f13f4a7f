package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
)

type changeJSON struct {
	DryRun  bool        `json:"dry_run"`
	Matched int         `json:"matched"` // number of messages that the command selected
	Changed int         `json:"changed"`
	Skipped []int64     `json:"skipped,omitempty"` // IDs that need --force, or that somebody else was changing
	Groups  []groupJSON `json:"groups,omitempty"`  // result of a dry run
	Replay  *replayJSON `json:"replay,omitempty"`

	// ReplayID is the replay of dead letters or sent messages that filters selected.
	ReplayID int64 `json:"replay_id,omitempty"`

	forced bool // --force was given
}

// discard has the library's functions, for IDs (named) and for filters (matching).
type discard struct {
	named    func() error
	groups   func() ([]groupJSON, error) // groups of the messages that match
	matching func() (int, error)
}

// Without yes, discard only shows the groups of the messages that match the filters.
func (a *app) discard(ctx context.Context, ids []int64, yes bool, d discard) error {
	if len(ids) > 0 {
		if err := d.named(); err != nil {
			return err
		}
		return a.done(ctx, "Discarded", changeJSON{Matched: len(ids), Changed: len(ids)}, "", nil)
	}
	groups, err := d.groups()
	if err != nil {
		return err
	}
	if !yes {
		return a.dryRun("discard", groups)
	}
	change := changeJSON{}
	for _, g := range groups {
		change.Matched += g.Count
	}
	change.Changed, err = d.matching()
	return a.done(ctx, "Discarded", change, "run the command again for the others", err)
}

// replay has the library's functions, for IDs (named) and for filters (matching).
type replay struct {
	named    func() error
	groups   func() ([]groupJSON, error) // groups of the messages that match
	matching func(progress func(operate.Report)) (operate.Replay, error)
}

// With filters and without yes, replay only shows the groups. planned says that --rate or --force
// was given, which only r.matching supports, even for IDs.
func (a *app) replay(ctx context.Context, ids []int64, planned, yes bool, r replay) error {
	switch {
	case len(ids) > 0 && !planned:
		if err := r.named(); err != nil {
			return err
		}
		return a.done(ctx, "Replayed", changeJSON{Matched: len(ids), Changed: len(ids)}, "", nil)
	case len(ids) == 0 && !yes:
		groups, err := r.groups()
		if err != nil {
			return err
		}
		return a.dryRun("replay", groups)
	}
	return a.replayMatching(ctx, ids, r.matching)
}

// ids are those of the command, if it has some.
func (a *app) replayMatching(
	ctx context.Context, ids []int64, run func(progress func(operate.Report)) (operate.Replay, error),
) error {
	p := a.progress()
	report, err := run(func(r operate.Report) {
		p.line(fmt.Sprintf("%d of %d replayed", r.Changed, r.Total))
	})
	p.end()
	again := ""
	if report.ID != 0 {
		again = fmt.Sprintf("resume it with: once replays resume %d", report.ID)
	}
	if errors.Is(err, operate.ErrReplayStopped) {
		err = fmt.Errorf("%w; %s", err, again)
	}
	return a.done(ctx, "Replayed", changeJSON{
		Matched: report.Total, Changed: report.Changed, Skipped: report.Skipped, ReplayID: report.ID,
	}, again, missing(ids, report.Changed+len(report.Skipped), err))
}

// missing adds what the functions for filters do not report: that some of the ids do not exist.
func missing(ids []int64, found int, err error) error {
	if err == nil && found < len(ids) {
		err = fmt.Errorf("%d of %s: %w", len(ids)-found, counted(len(ids), "message", "messages"), operate.ErrNotFound)
	}
	return err
}

func (a *app) dryRun(verb string, groups []groupJSON) error {
	matched, skipped := 0, 0
	for _, g := range groups {
		matched += g.Count
		skipped += len(g.Skipped)
	}
	if matched == 0 {
		return a.print(changeJSON{DryRun: true}, "No message matches.\n")
	}
	text := largestGroups(a.width, groups)
	text += fmt.Sprintf("\nThis would %s %s.", verb, counted(matched-skipped, "message", "messages"))
	if skipped > 0 {
		text += fmt.Sprintf(" %s would need --force.", counted(skipped, "more message", "more messages"))
	}
	return a.print(changeJSON{DryRun: true, Matched: matched, Groups: groups}, text+" Nothing was changed: add --yes to do it.\n")
}

// done prints the changes even after an error. If ctx has ended, it contains howToContinue.
func (a *app) done(ctx context.Context, verb string, change changeJSON, howToContinue string, err error) error {
	text := fmt.Sprintf("%s %s.", verb, counted(change.Changed, "message", "messages"))
	if len(change.Skipped) > 0 {
		reason := "each needs --force, or somebody else was changing it"
		if change.forced {
			reason = "somebody else was changing them; run the command again"
		}
		text += fmt.Sprintf(" %s skipped (%s): %s.",
			counted(len(change.Skipped), "message was", "messages were"), idList(change.Skipped), reason)
	}
	if err == nil || change.Changed+len(change.Skipped) > 0 {
		if err := a.print(change, text+"\n"); err != nil {
			return err
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("interrupted after %d of %s; %s", change.Changed, counted(change.Matched, "message", "messages"), howToContinue)
	case err != nil:
		return err
	case len(change.Skipped) > 0:
		return foundError{}
	}
	return nil
}

func idList(ids []int64) string {
	const most = 20
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(ids[:min(len(ids), most)]), " ", ", "), "[]")
	if len(ids) > most {
		text += fmt.Sprintf(" and %d more", len(ids)-most)
	}
	return text
}

type act struct {
	all, yes bool
	noRate   bool // --rate has no effect on messages that are named by ID
}

// For the audit log.
func (a *app) who() (operate.Act, error) {
	actor, err := a.actor()
	return operate.Act{Actor: actor, Why: a.settings.why}, err
}

func (a *app) addActFlags(cmd *cobra.Command, to *act) {
	flags := cmd.Flags()
	flags.BoolVar(&to.all, "all", false, "select all messages")
	flags.BoolVar(&to.yes, "yes", false, "change what the filters select; without it the command only shows what matches")
	flags.StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
}

const noEffect = "--%s has no effect on messages that you name by ID: leave it out, or select the messages with filters"

func (to *act) selected(cmd *cobra.Command, args, conditions []string) ([]int64, error) {
	ids, err := parseIDs(args)
	if err != nil {
		return nil, err
	}
	filtered := slices.ContainsFunc(conditions, cmd.Flags().Changed)
	switch {
	case len(ids) > 0 && (filtered || to.all):
		return nil, usagef("give IDs or filters, not both")
	case to.all && filtered:
		return nil, usagef("--all selects everything: leave it out, or leave out the filters")
	case len(ids) == 0 && !filtered && !to.all:
		return nil, usagef("say which messages: give IDs, filters such as --%s, or --all", conditions[0])
	case len(ids) > 0 && cmd.Flags().Changed("limit"):
		return nil, usagef(noEffect, "limit")
	case len(ids) > 0 && to.noRate && cmd.Flags().Changed("rate"):
		return nil, usagef(noEffect, "rate")
	}
	return ids, nil
}

// A dry run needs no reason.
func (a *app) needWhy(required bool) error {
	if required && strings.TrimSpace(a.settings.why) == "" {
		return usagef("say why with --why: the reason is written to the audit log")
	}
	return nil
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

type progress struct {
	out      io.Writer
	terminal bool
	shown    time.Time
}

// progressEvery is for output without a terminal.
const progressEvery = 10 * time.Second

func (a *app) progress() *progress {
	return &progress{out: a.stderr, terminal: a.width > 0, shown: time.Now()}
}

func (p *progress) show(r operate.Report) {
	p.line(fmt.Sprintf("replay %d: %d of %d replayed, %d resolved, %d failed, %d stale",
		r.ID, r.Changed, r.Total, r.Resolved, r.Failed, r.Stale))
}

// line overwrites the line of a terminal, or else writes one each progressEvery.
func (p *progress) line(text string) {
	switch {
	case p.terminal:
		fmt.Fprintf(p.out, "\r%s\x1b[K", text)
	case time.Since(p.shown) >= progressEvery:
		p.shown = time.Now()
		fmt.Fprintln(p.out, text)
	}
}

func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
