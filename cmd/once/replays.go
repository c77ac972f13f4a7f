package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	"github.com/watermill-once/once/operate/quarantine"
)

// For dead letters and sent messages, only Total and Replayed are counted.
type replayJSON struct {
	ID         int64     `json:"id"`
	Source     string    `json:"source"`
	State      string    `json:"state"`
	StopReason string    `json:"stop_reason,omitempty"`
	Consumer   string    `json:"consumer,omitempty"`
	Total      int       `json:"total"`
	Replayed   int       `json:"replayed"`
	Resolved   int       `json:"resolved"`
	Failed     int       `json:"failed"`
	Stale      int       `json:"stale"`
	Waiting    int       `json:"waiting"`
	Actor      string    `json:"actor"`
	Why        string    `json:"why,omitempty"`
	StartedAt  time.Time `json:"started_at"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
}

type replaysJSON struct {
	Replays []replayJSON `json:"replays"`
	Next    int64        `json:"next,omitempty"` // --before of the next page
}

func replayOf(r *operate.Replay) replayJSON {
	return replayJSON{
		ID: r.ID, Source: r.Source, State: r.State, StopReason: r.StopReason, Consumer: r.Consumer, Total: r.Total, Replayed: r.Changed,
		Resolved: r.Resolved, Failed: r.Failed, Stale: r.Stale, Waiting: r.Waiting, Actor: r.Actor, Why: r.Why,
		StartedAt: r.StartedAt, EndedAt: r.EndedAt,
	}
}

func (a *app) replaysCommand() *cobra.Command {
	return group("replays", "Replays of many messages",
		a.replaysListCommand(), a.replaysWatchCommand(), a.replaysStopCommand(), a.replaysResumeCommand())
}

func (a *app) replaysListCommand() *cobra.Command {
	before := 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List replays, the latest first",
		Long: `List replays of the quarantine, of dead letters and of sent messages, the latest first.
What became of the messages is known for the quarantine only.`,
		Args: noArgs,
		RunE: with(a, quarantine.New, nil, func(ctx context.Context, q *quarantine.Entries, _ []string) error {
			replays, err := q.Replays(ctx, int64(before))
			if err != nil {
				return err
			}
			out := replaysJSON{Replays: []replayJSON{}}
			var rows [][]string
			for _, r := range replays {
				out.Replays = append(out.Replays, replayOf(&r))
				row := []string{fmt.Sprint(r.ID), r.State, replayedFrom(&r), fmt.Sprint(r.Total), fmt.Sprint(r.Changed)}
				if r.Source == operate.SourceQuarantine {
					row = append(row, fmt.Sprint(r.Resolved), fmt.Sprint(r.Failed), fmt.Sprint(r.Stale), fmt.Sprint(r.Waiting))
				} else {
					row = append(row, "-", "-", "-", "-")
				}
				rows = append(rows, append(row, at(r.StartedAt), r.Actor, r.StopReason))
			}
			if len(rows) == 0 {
				return a.print(out, "There is no replay.\n")
			}
			out.Next = replays[len(replays)-1].ID
			return a.print(out, table(a.width, []string{
				"ID", "STATE", "OF", "TOTAL", "REPLAYED", "RESOLVED", "FAILED", "STALE", "WAITING", "STARTED (UTC)", "ACTOR", "STOPPED BECAUSE",
			}, rows))
		}),
	}
	cmd.Flags().Var(atLeast(&before, 1), "before", "list replays before this ID")
	return cmd
}

func (a *app) replaysResumeCommand() *cobra.Command {
	var config operate.Config
	cmd := &cobra.Command{
		Use:   "resume ID",
		Short: "Continue a replay that was paused, stopped or abandoned",
		Long: `Continue a replay that was paused, stopped, or abandoned because its process died. It
has the filters, the rate and the other settings with which it began. Give
--inbox-retention again if the replay of dead letters or sent messages had it.`,
		Args: oneID,
		RunE: a.withTables(func(ctx context.Context, db database, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			who, err := a.who()
			if err != nil {
				return err
			}
			q, err := quarantine.New(db.DB, operate.Config{Schema: db.tables})
			if err != nil {
				return err
			}
			r, err := q.ReplayOf(ctx, ids[0])
			if err != nil {
				return err
			}
			if r.Source != operate.SourceQuarantine {
				return a.resumeOutboxReplay(ctx, db, who, &r, config)
			}
			progress := a.progress()
			replay, err := q.Resume(ctx, who, ids[0], progress.show)
			progress.end()
			return a.replayed(replay, nil, err)
		}),
	}
	cmd.Flags().Var(duration(&config.InboxRetention), "inbox-retention",
		"of dead letters and sent messages: how long all consumers remember ids (default: 7d)")
	cmd.Flags().StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}

func (a *app) replaysStopCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stop ID",
		Short: "Stop a running replay, also that of another process",
		Long: `Stop a running replay, also that of another process, or of one that has died. Messages
that were replayed before are still handled. once replays resume continues it.`,
		Args: oneID,
		RunE: with(a, quarantine.New, nil, func(ctx context.Context, q *quarantine.Entries, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			who, err := a.who()
			if err != nil {
				return err
			}
			r, err := q.StopReplay(ctx, who, ids[0])
			if err != nil {
				return err
			}
			return a.print(replayOf(&r), fmt.Sprintf("Replay %d is %s: %d of %s replayed.\n",
				r.ID, r.State, r.Changed, counted(r.Total, "message was", "messages were")))
		}),
	}
	cmd.Flags().StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}

// The error of replayed decides the exit code. ids are those of the command, if it has some.
func (a *app) replayed(r operate.Replay, ids []int64, err error) error {
	switch {
	case r.ID == 0 && err != nil: // the replay did not begin
		return err
	case r.ID == 0 && len(ids) > 0:
		return missing(ids, 0, nil)
	case r.ID == 0:
		return a.print(changeJSON{}, "No message matches.\n")
	}
	j := replayOf(&r)
	change := changeJSON{Matched: r.Total, Changed: r.Changed, Replay: &j}
	text := fmt.Sprintf("Replay %d %s: %d of %s replayed; %d resolved, %d failed again, %d stale, %d waiting.\n",
		r.ID, r.State, r.Changed, counted(r.Total, "message", "messages"), r.Resolved, r.Failed, r.Stale, r.Waiting)
	if printErr := a.print(change, text); printErr != nil {
		return printErr
	}
	resume := fmt.Sprintf("resume it with: once replays resume %d", r.ID)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("replay %d is paused; %s", r.ID, resume)
	case errors.Is(err, operate.ErrReplayStopped):
		return fmt.Errorf("%w; when the cause is repaired, %s", err, resume)
	case err != nil:
		return fmt.Errorf("%w; %s", err, resume)
	case r.Changed < len(ids):
		return missing(ids, r.Changed, nil)
	case r.Failed+r.Stale > 0:
		return foundError{}
	}
	return nil
}

func replayedFrom(r *operate.Replay) string {
	switch {
	case r.Source == operate.SourceDead:
		return "dead letters"
	case r.Source == operate.SourceSent:
		return "sent messages"
	case r.Consumer == "":
		return "all consumers"
	default:
		return r.Consumer
	}
}

func (a *app) replaysWatchCommand() *cobra.Command {
	every := time.Second
	cmd := &cobra.Command{
		Use:   "watch ID",
		Short: "Follow a replay until it ends, also that of another process",
		Long: `Follow a replay until it ends, also that of another process. Ctrl-C stops the command,
not the replay: use once replays stop for that. The exit code is 3 if the replay ended
without finishing, or if messages failed again. With --json, only the end is written.`,
		Args: oneID,
		RunE: with(a, quarantine.New, nil, func(ctx context.Context, q *quarantine.Entries, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.watchReplay(ctx, q, ids[0], every)
		}),
	}
	cmd.Flags().Var(duration(&every), "every", "time between two looks")
	return cmd
}

func (a *app) watchReplay(ctx context.Context, q *quarantine.Entries, id int64, every time.Duration) error {
	p := a.progress()
	defer p.end()
	look := time.NewTicker(every)
	defer look.Stop()
	for {
		r, err := q.ReplayOf(ctx, id)
		if err != nil {
			return err
		}
		if r.State != operate.ReplayRunning {
			p.end()
			return a.watched(&r)
		}
		p.show(r.Report)
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("stopped looking; replay %d still runs: %d of %s replayed",
				id, r.Changed, counted(r.Total, "message", "messages"))
		}
	}
}

func (a *app) watched(r *operate.Replay) error {
	text := fmt.Sprintf("Replay %d %s: %d of %s replayed", r.ID, r.State, r.Changed, counted(r.Total, "message", "messages"))
	if r.Source == operate.SourceQuarantine {
		text += fmt.Sprintf("; %d resolved, %d failed again, %d stale, %d waiting", r.Resolved, r.Failed, r.Stale, r.Waiting)
	}
	text += ".\n"
	if r.StopReason != "" {
		text += "It ended because: " + plain(r.StopReason) + "\n"
	}
	if r.State != operate.ReplayFinished {
		text += fmt.Sprintf("Resume it with: once replays resume %d\n", r.ID)
	}
	if err := a.print(replayOf(r), text); err != nil {
		return err
	}
	if r.State != operate.ReplayFinished || r.Failed+r.Stale > 0 {
		return foundError{}
	}
	return nil
}

func (a *app) resumeOutboxReplay(
	ctx context.Context, db database, who operate.Act, r *operate.Replay, config operate.Config,
) error {
	config.Schema = db.tables
	var from replayable
	from, err := dead.New(db.DB, config)
	if r.Source == operate.SourceSent {
		from, err = dead.NewSentLog(db.DB, config)
	}
	if err != nil {
		return err
	}
	return a.replayMatching(ctx, nil, func(progress func(operate.Report)) (operate.Replay, error) {
		return from.Resume(ctx, who, r.ID, progress)
	})
}
