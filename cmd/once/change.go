package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/operate"
)

// changeJSON is the output of the commands that change messages.
type changeJSON struct {
	DryRun  bool        `json:"dry_run"`
	Matched int         `json:"matched"` // messages that the command selected
	Changed int         `json:"changed"`
	Skipped []int64     `json:"skipped,omitempty"` // IDs that a replay skipped: they need --force
	Groups  []groupJSON `json:"groups,omitempty"`  // of a dry run
	Replay  *replayJSON `json:"replay,omitempty"`

	// ReplayID is the ID of a replay of dead letters or sent messages that were selected
	// by filters.
	ReplayID int64 `json:"replay_id,omitempty"`
}

// discard are the library's calls to discard messages that are named by IDs or match.
type discard struct {
	named    func() error
	groups   func() ([]groupJSON, error) // that match
	matching func() (int, error)
}

// discard discards the messages with these IDs, or those that match. Without yes it
// says which match.
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

// replay are the library's calls to replay messages into the outbox.
type replay struct {
	named    func() error
	groups   func() ([]groupJSON, error) // that match
	matching func(progress func(deadletter.Report)) (deadletter.Report, error)
}

// replay replays the messages with these IDs, or those that match. Without yes it says
// which match. planned is set if a rate or force asks for the call that can do that.
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
	return a.replayMatching(ctx, r.matching)
}

// replayMatching runs a replay into the outbox and reports how it ended.
func (a *app) replayMatching(ctx context.Context, run func(progress func(deadletter.Report)) (deadletter.Report, error)) error {
	p := a.progress()
	report, err := run(func(r deadletter.Report) {
		p.line(fmt.Sprintf("%d of %d replayed", r.Replayed, r.Total))
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
		Matched: report.Total, Changed: report.Replayed, Skipped: report.Skipped, ReplayID: report.ID,
	}, again, err)
}

// dryRun says what a command would change.
func (a *app) dryRun(verb string, groups []groupJSON) error {
	matched, skipped := 0, 0
	for _, g := range groups {
		matched += g.Count
		skipped += len(g.Skipped)
	}
	if matched == 0 {
		return a.print(changeJSON{DryRun: true}, "No message matches.\n")
	}
	text := groupTable(a.width, groups)
	text += fmt.Sprintf("\nThis would %s %s.", verb, counted(matched-skipped, "message", "messages"))
	if skipped > 0 {
		text += fmt.Sprintf(" %s would need --force.", counted(skipped, "more message", "more messages"))
	}
	return a.print(changeJSON{DryRun: true, Matched: matched, Groups: groups}, text+" Nothing was changed: add --yes to do it.\n")
}

// done reports what a command has changed, also if it failed on the way.
func (a *app) done(ctx context.Context, verb string, change changeJSON, again string, err error) error {
	text := fmt.Sprintf("%s %s.", verb, counted(change.Changed, "message", "messages"))
	if len(change.Skipped) > 0 {
		text += fmt.Sprintf(" %s skipped, because they need --force: %s.",
			counted(len(change.Skipped), "message was", "messages were"), idList(change.Skipped))
	}
	if err == nil || change.Changed > 0 {
		if err := a.print(change, text+"\n"); err != nil {
			return err
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("interrupted after %d of %s; %s", change.Changed, counted(change.Matched, "message", "messages"), again)
	case err != nil:
		return err
	case len(change.Skipped) > 0:
		return foundError{}
	}
	return nil
}

// idList renders the first IDs of a list.
func idList(ids []int64) string {
	const most = 20
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(ids[:min(len(ids), most)]), " ", ", "), "[]")
	if len(ids) > most {
		text += fmt.Sprintf(" and %d more", len(ids)-most)
	}
	return text
}
