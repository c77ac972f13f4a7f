package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/operate"
)

// changeJSON is the JSON output of the commands that change messages.
type changeJSON struct {
	DryRun  bool        `json:"dry_run"`
	Matched int         `json:"matched"` // number of messages that the command selected
	Changed int         `json:"changed"`
	Skipped []int64     `json:"skipped,omitempty"` // IDs that a replay skipped because they need --force
	Groups  []groupJSON `json:"groups,omitempty"`  // result of a dry run
	Replay  *replayJSON `json:"replay,omitempty"`

	// ReplayID is the ID of a replay of dead letters or sent messages that were selected
	// by filters.
	ReplayID int64 `json:"replay_id,omitempty"`
}

// discard contains the library's functions that discard messages. The field named is
// for the messages with the given IDs. The field matching is for the messages that
// match the filters.
type discard struct {
	named    func() error
	groups   func() ([]groupJSON, error) // groups of the messages that match
	matching func() (int, error)
}

// discard discards the messages with these IDs, or the messages that match the filters.
// If the parameter yes is false, it only shows the groups of the matching messages.
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

// replay contains the library's functions that replay messages into the outbox. The
// field named is for the messages with the given IDs. The field matching is for the
// messages that match the filters.
type replay struct {
	named    func() error
	groups   func() ([]groupJSON, error) // groups of the messages that match
	matching func(progress func(deadletter.Report)) (deadletter.Report, error)
}

// replay replays the messages with these IDs, or the messages that match the filters. If
// filters are used and the parameter yes is false, it only shows the groups of the
// matching messages. The parameter planned is true if --rate or --force was given. Then
// replay calls r.matching even for IDs, because r.named does not support these flags.
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

// replayMatching runs a replay into the outbox, and prints how it ended.
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

// dryRun shows how many messages a command would change, in which groups. The parameter
// verb names the change, such as "discard".
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

// done prints the changes of a command, even if the command failed after some of them. If
// the command failed because ctx has ended, the error contains the text howToContinue.
func (a *app) done(ctx context.Context, verb string, change changeJSON, howToContinue string, err error) error {
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
		return fmt.Errorf("interrupted after %d of %s; %s", change.Changed, counted(change.Matched, "message", "messages"), howToContinue)
	case err != nil:
		return err
	case len(change.Skipped) > 0:
		return foundError{}
	}
	return nil
}

// idList returns the first IDs of a list as text.
func idList(ids []int64) string {
	const most = 20
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(ids[:min(len(ids), most)]), " ", ", "), "[]")
	if len(ids) > most {
		text += fmt.Sprintf(" and %d more", len(ids)-most)
	}
	return text
}
