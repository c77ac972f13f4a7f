package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/operate"
)

const (
	// The pause between two updates of a replay's state is at least shortestPause, and pauseFactor
	// times the duration of the update.
	shortestPause = 50 * time.Millisecond
	pauseFactor   = 10

	// progressEvery is the time after which Plan.Progress is called again without a change.
	progressEvery = time.Second

	pauseTimeout = 10 * time.Second
)

// replayRun is one run of a replay in this process, from taking to giving back the lease.
type replayRun struct {
	*Replays

	replay        *Replay
	progress      func(operate.Report)
	rate          *Rate
	reported      [7]int // counts at the last call of progress
	reportedAt    time.Time
	knownFailures int  // these failures do not stop the replay
	nothingLeft   bool // no message remains to be replayed
	lost          bool // the last batch found that the lease had ended
}

func (s *Replays) run(ctx context.Context, r *Replay, progress func(operate.Report)) (operate.Replay, error) {
	if progress == nil {
		progress = func(operate.Report) {}
	}
	x := &replayRun{Replays: s, replay: r, progress: progress, knownFailures: r.knownFailures, rate: NewRate(r.Plan.Rate)}
	err := x.stopped(ctx, x.loop(ctx))
	if err != nil && !errors.Is(err, operate.ErrReplayStopped) && !errors.Is(err, operate.ErrReplayLost) {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
		defer cancel()
		endErr := x.stopped(end, x.end(end, operate.ReplayPaused, PauseReason(ctx, err)))
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		switch {
		case errors.Is(endErr, operate.ErrReplayStopped):
			err = endErr
		case endErr != nil:
			err = fmt.Errorf("%w, and the replay could not be marked as paused: %w", err, endErr)
		}
	}
	if err != nil {
		err = fmt.Errorf("replay %d: %w", r.ID, err)
	}
	return x.replay.Replay, err
}

// loop repeats a step that fails because other work blocks the database, such as a long handler
// with SQLite: the row of the replay shows which batches were committed.
func (x *replayRun) loop(ctx context.Context) error {
	for {
		pause, ended, err := x.step(ctx)
		if ended || (err != nil && !dialect.Contended(err)) {
			return err
		}
		if err == nil && !x.source.Outcomes {
			err = x.rate.Wait(ctx, x.source.Batch)
		} else {
			err = sleep(ctx, min(pause, x.source.Lease/3))
		}
		if err != nil {
			return err
		}
	}
}

// step either ends the replay or replays more messages, and returns the pause before the next step.
func (x *replayRun) step(ctx context.Context) (pause time.Duration, ended bool, err error) {
	begin := time.Now()
	if x.source.Outcomes || x.lost { // otherwise each batch renews the lease and counts its messages
		now, err := x.Renew(ctx, x.replay)
		if err != nil {
			return shortestPause, false, err
		}
		x.replay, x.lost = now, false
	}
	now := x.replay
	pause = max(shortestPause, pauseFactor*time.Since(begin))
	if x.source.Outcomes {
		x.report(begin)
	}

	canary := now.Plan.Canary > 0 && now.Changed <= now.Plan.Canary
	switch {
	case now.Failed > x.knownFailures && (canary || now.Plan.StopOnFailure):
		err = x.stop(ctx, canary)
		return pause, errors.Is(err, operate.ErrReplayStopped), err
	case x.nothingLeft && now.Waiting == 0:
		err = x.end(ctx, operate.ReplayFinished, "")
		return pause, err == nil, err
	}
	return pause, false, x.advance(ctx, x.room())
}

// report calls progress after a change, or after progressEvery.
func (x *replayRun) report(now time.Time) {
	r := x.replay
	counts := [...]int{r.Total, r.Changed, r.Resolved, r.Failed, r.Stale, r.Waiting, len(r.Skipped)}
	if counts == x.reported && now.Sub(x.reportedAt) < progressEvery {
		return
	}
	x.reported, x.reportedAt = counts, now
	x.progress(r.Report)
}

// room returns the maximum number of messages that the Plan allows to replay now.
func (x *replayRun) room() int {
	r := x.replay
	room := x.source.Batch
	if x.source.Outcomes {
		room = r.Plan.Window - r.Waiting
	}
	if first := r.Plan.Canary; r.Changed < first {
		room = min(room, first-r.Changed)
	} else if r.Changed == first && r.Waiting > 0 {
		return 0
	}
	if limit := r.Filter.Limit; limit > 0 {
		room = min(room, limit-r.Changed)
		x.nothingLeft = x.nothingLeft || r.Changed >= limit
	}
	return x.rate.Room(room)
}

func (x *replayRun) advance(ctx context.Context, room int) error {
	for room > 0 && !x.nothingLeft {
		replayed, more, err := x.Advance(ctx, x.replay, min(room, x.source.Batch))
		if errors.Is(err, operate.ErrReplayLost) {
			x.lost = true
			return nil // the next step takes the lease again or returns the error
		}
		if err != nil {
			return err
		}
		x.nothingLeft = !more
		room -= replayed
		x.rate.Took(replayed)
		if !x.source.Outcomes {
			x.report(x.reportedAt)
			return nil
		}
	}
	return nil
}

func (x *replayRun) stop(ctx context.Context, canary bool) error {
	reason := fmt.Sprintf("%d failed again", x.replay.Failed-x.knownFailures)
	if canary {
		reason += " of the canary"
	}
	if err := x.end(ctx, operate.ReplayStopped, reason); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s", operate.ErrReplayStopped, reason)
}

func (x *replayRun) end(ctx context.Context, state, reason string) error {
	now, err := x.Replays.end(ctx, x.replay, state, reason)
	if err != nil {
		return err
	}
	x.replay = now
	if x.source.Outcomes {
		x.progress(now.Report)
	}
	return nil
}

// stopped returns [operate.ErrReplayStopped] for an [operate.ErrReplayLost] because an operator has
// stopped the replay.
func (x *replayRun) stopped(ctx context.Context, err error) error {
	if !errors.Is(err, operate.ErrReplayLost) {
		return err
	}
	now, readErr := x.Reload(ctx, x.replay)
	if readErr != nil || now.State != operate.ReplayStopped {
		return err
	}
	x.replay = now
	if x.source.Outcomes {
		x.progress(now.Report)
	}
	return fmt.Errorf("%w: %s", operate.ErrReplayStopped, now.StopReason)
}

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
