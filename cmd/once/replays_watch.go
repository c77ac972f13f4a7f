package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/poison"
)

// replayedFrom returns the source of a replay as text.
func replayedFrom(r *poison.Replay) string {
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
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, args []string) error {
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

// watchReplay shows the progress of a replay until the replay has ended.
func (a *app) watchReplay(ctx context.Context, q *poison.Quarantine, id int64, every time.Duration) error {
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
				id, r.Replayed, counted(r.Total, "message", "messages"))
		}
	}
}

// watched prints how a replay ended.
func (a *app) watched(r *poison.Replay) error {
	text := fmt.Sprintf("Replay %d %s: %d of %s replayed", r.ID, r.State, r.Replayed, counted(r.Total, "message", "messages"))
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

// resumeOutboxReplay continues a replay of dead letters or sent messages.
func (a *app) resumeOutboxReplay(
	ctx context.Context, db database, who operate.Act, r *poison.Replay, config deadletter.Config,
) error {
	config.Schema = db.tables
	resume := func(progress func(operate.Report)) (operate.Report, error) {
		letters, err := deadletter.New(db.DB, config)
		if err != nil {
			return operate.Report{}, err
		}
		return letters.Resume(ctx, who, r.ID, progress)
	}
	if r.Source == operate.SourceSent {
		resume = func(progress func(operate.Report)) (operate.Report, error) {
			log, err := deadletter.NewSentLog(db.DB, config)
			if err != nil {
				return operate.Report{}, err
			}
			return log.Resume(ctx, who, r.ID, progress)
		}
	}
	return a.replayMatching(ctx, resume)
}
