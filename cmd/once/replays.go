package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/poison"
)

// replayJSON is a replay of many entries of the quarantine.
type replayJSON struct {
	ID         int64     `json:"id"`
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

// replaysJSON is the output of replays list.
type replaysJSON struct {
	Replays []replayJSON `json:"replays"`
	Next    int64        `json:"next,omitempty"` // --before of the next page
}

func replayOf(r *poison.Replay) replayJSON {
	return replayJSON{
		ID: r.ID, State: r.State, StopReason: r.StopReason, Consumer: r.Consumer, Total: r.Total, Replayed: r.Replayed,
		Resolved: r.Resolved, Failed: r.Failed, Stale: r.Stale, Waiting: r.Waiting, Actor: r.Actor, Why: r.Why,
		StartedAt: r.StartedAt, EndedAt: r.EndedAt,
	}
}

func (a *app) replaysCommand() *cobra.Command {
	return group("replays", "Replays of many entries of the quarantine",
		a.replaysListCommand(), a.replaysStopCommand(), a.replaysResumeCommand())
}

func (a *app) replaysListCommand() *cobra.Command {
	before := 0
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List replays, the latest first",
		Args:  noArgs,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			replays, err := q.Replays(ctx, int64(before))
			if err != nil {
				return err
			}
			out := replaysJSON{Replays: []replayJSON{}}
			var rows [][]string
			for _, r := range replays {
				out.Replays = append(out.Replays, replayOf(&r))
				consumer := r.Consumer
				if consumer == "" {
					consumer = "all"
				}
				rows = append(rows, []string{
					fmt.Sprint(r.ID), r.State, consumer, fmt.Sprint(r.Total), fmt.Sprint(r.Replayed), fmt.Sprint(r.Resolved),
					fmt.Sprint(r.Failed), fmt.Sprint(r.Stale), fmt.Sprint(r.Waiting), at(r.StartedAt), r.Actor, r.StopReason,
				})
			}
			if len(rows) == 0 {
				return a.print(out, "There is no replay.\n")
			}
			out.Next = replays[len(replays)-1].ID
			return a.print(out, table(a.width, []string{
				"ID", "STATE", "CONSUMER", "TOTAL", "REPLAYED", "RESOLVED", "FAILED", "STALE", "WAITING", "STARTED (UTC)", "ACTOR", "STOPPED BECAUSE",
			}, rows))
		}),
	}
	cmd.Flags().Var(atLeast(&before, 1), "before", "list replays before this ID")
	return cmd
}

func (a *app) replaysResumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resume ID",
		Short: "Continue a replay that was paused, stopped or abandoned",
		Args:  oneID,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			who, err := a.poisonAct()
			if err != nil {
				return err
			}
			progress := a.progress()
			replay, err := q.Resume(ctx, who, ids[0], progress.show)
			progress.end()
			return a.replayed(replay, err)
		}),
	}
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
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			who, err := a.poisonAct()
			if err != nil {
				return err
			}
			r, err := q.StopReplay(ctx, who, ids[0])
			if err != nil {
				return err
			}
			return a.print(replayOf(&r), fmt.Sprintf("Replay %d is %s: %d of %s replayed.\n",
				r.ID, r.State, r.Replayed, counted(r.Total, "message was", "messages were")))
		}),
	}
	cmd.Flags().StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}

// replayed reports the end of a replay of many entries.
func (a *app) replayed(r poison.Replay, err error) error {
	if r.ID == 0 {
		return err // it did not begin
	}
	j := replayOf(&r)
	change := changeJSON{Matched: r.Total, Changed: r.Replayed, Replay: &j}
	text := fmt.Sprintf("Replay %d %s: %d of %s replayed; %d resolved, %d failed again, %d stale, %d waiting.\n",
		r.ID, r.State, r.Replayed, counted(r.Total, "message", "messages"), r.Resolved, r.Failed, r.Stale, r.Waiting)
	if printErr := a.print(change, text); printErr != nil {
		return printErr
	}
	resume := fmt.Sprintf("resume it with: once replays resume %d", r.ID)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("replay %d is paused; %s", r.ID, resume)
	case errors.Is(err, poison.ErrReplayStopped):
		return fmt.Errorf("%w; when the cause is repaired, %s", err, resume)
	case err != nil:
		return fmt.Errorf("%w; %s", err, resume)
	case r.Failed+r.Stale > 0:
		return foundError{}
	}
	return nil
}

// progress shows the progress of a replay on standard error.
type progress struct {
	out      io.Writer
	terminal bool
	shown    time.Time
}

// progressEvery is how often a line is written if there is no terminal.
const progressEvery = 10 * time.Second

func (a *app) progress() *progress {
	return &progress{out: a.stderr, terminal: a.width > 0, shown: time.Now()}
}

func (p *progress) show(r poison.Report) {
	p.line(fmt.Sprintf("replay %d: %d of %d replayed, %d resolved, %d failed, %d stale",
		r.ID, r.Replayed, r.Total, r.Resolved, r.Failed, r.Stale))
}

// line overwrites the line of a terminal. Elsewhere it writes a line now and then.
func (p *progress) line(text string) {
	switch {
	case p.terminal:
		fmt.Fprintf(p.out, "\r%s\x1b[K", text)
	case time.Since(p.shown) >= progressEvery:
		p.shown = time.Now()
		fmt.Fprintln(p.out, text)
	}
}

// end leaves the line of a terminal.
func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
