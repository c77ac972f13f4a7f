package poison

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/operate"
)

const (
	// replayBatch is the number of entries that one transaction replays.
	replayBatch = 200

	// The pause between two updates of a replay's state is at least shortestPause. It is
	// also at least pauseFactor times the duration of the update, so that updates take only
	// a small part of the time.
	shortestPause = 50 * time.Millisecond
	pauseFactor   = 10

	// progressEvery is the time after which Plan.Progress is called again, even if no count
	// has changed.
	progressEvery = time.Second

	// pauseTimeout is the timeout of the statement that pauses a replay after its context
	// has ended.
	pauseTimeout = 10 * time.Second
)

// replayRun is one run of a replay in this process. It begins when the process takes
// the lease, and ends when the process gives the lease back.
type replayRun struct {
	*Quarantine

	replay        *leasedReplay
	progress      func(Report)
	rate          *operate.Rate
	reported      [6]int // counts at the last call of progress
	reportedAt    time.Time
	knownFailures int  // these failures do not stop the replay
	nothingLeft   bool // no entry remains to be replayed
}

func (q *Quarantine) run(ctx context.Context, r *leasedReplay, progress func(Report)) (Replay, error) {
	if progress == nil {
		progress = func(Report) {}
	}
	x := &replayRun{
		Quarantine: q, replay: r, progress: progress, knownFailures: r.knownFailures,
		rate: operate.NewRate(r.Plan.Rate),
	}
	err := x.stopped(ctx, x.loop(ctx))
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrReplayStopped) {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
		defer cancel()
		err = ctx.Err()
		switch endErr := x.stopped(end, x.end(end, ReplayPaused, "its context ended")); {
		case errors.Is(endErr, ErrReplayStopped):
			err = endErr
		case endErr != nil:
			err = fmt.Errorf("%w, and the replay could not be marked as paused: %w", err, endErr)
		}
	}
	if err != nil {
		err = fmt.Errorf("poison: replay %d: %w", r.ID, err)
	}
	return x.replay.Replay, err
}

// loop runs steps until the replay ends. If a step fails because other work blocks the
// database, such as a long handler with SQLite, loop repeats the step. A step can be
// repeated, because the row of the replay shows which batches were committed.
func (x *replayRun) loop(ctx context.Context) error {
	for {
		pause, ended, err := x.step(ctx)
		if ended || (err != nil && !dialect.Contended(err)) {
			return err
		}
		if err := sleep(ctx, min(pause, x.config.ReplayLease/3)); err != nil {
			return err
		}
	}
}

// step reads the state of the replay. Then it either ends the replay or replays more
// entries. It returns the pause before the next step.
func (x *replayRun) step(ctx context.Context) (pause time.Duration, ended bool, err error) {
	begin := time.Now()
	now, err := x.table.renewReplay(ctx, x.replay, x.config.ReplayLease)
	if err != nil {
		return shortestPause, false, err
	}
	x.replay = now
	pause = max(shortestPause, pauseFactor*time.Since(begin))
	x.report(begin)

	canary := now.Plan.Canary > 0 && now.Replayed <= now.Plan.Canary
	switch {
	case now.Failed > x.knownFailures && (canary || now.Plan.StopOnFailure):
		err = x.stop(ctx, canary)
		return pause, errors.Is(err, ErrReplayStopped), err
	case x.nothingLeft && now.Waiting == 0:
		err = x.end(ctx, ReplayFinished, "")
		return pause, err == nil, err
	}
	return pause, false, x.advance(ctx, x.room())
}

// report calls progress if the counts have changed, or if the last call was at least
// progressEvery ago.
func (x *replayRun) report(now time.Time) {
	r := x.replay
	counts := [...]int{r.Total, r.Replayed, r.Resolved, r.Failed, r.Stale, r.Waiting}
	if counts == x.reported && now.Sub(x.reportedAt) < progressEvery {
		return
	}
	x.reported, x.reportedAt = counts, now
	x.progress(r.Report)
}

// room returns the maximum number of messages that the Plan allows to replay now.
func (x *replayRun) room() int {
	r := x.replay
	room := r.Plan.Window - r.Waiting
	if first := r.Plan.Canary; r.Replayed < first {
		room = min(room, first-r.Replayed)
	} else if r.Replayed == first && r.Waiting > 0 {
		return 0
	}
	if limit := r.Filter.Limit; limit > 0 {
		room = min(room, limit-r.Replayed)
		x.nothingLeft = x.nothingLeft || r.Replayed >= limit
	}
	return x.rate.Room(room)
}

func (x *replayRun) advance(ctx context.Context, room int) error {
	for room > 0 && !x.nothingLeft {
		replayed, more, err := x.table.advanceReplay(ctx, x.replay, min(room, replayBatch), x.config.ReplayLease)
		if errors.Is(err, ErrReplayLost) {
			return nil // the next step takes the lease again or returns the error
		}
		if err != nil {
			return err
		}
		x.nothingLeft = !more
		room -= replayed
		x.rate.Took(replayed)
		x.instruments.replayed.Add(int64(replayed), 0)
	}
	return nil
}

func (x *replayRun) stop(ctx context.Context, canary bool) error {
	reason := fmt.Sprintf("%d failed again", x.replay.Failed-x.knownFailures)
	if canary {
		reason += " of the canary"
	}
	if err := x.end(ctx, ReplayStopped, reason); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s", ErrReplayStopped, reason)
}

func (x *replayRun) end(ctx context.Context, state, reason string) error {
	now, err := x.table.endReplay(ctx, x.replay, state, reason)
	if err != nil {
		return err
	}
	x.replay = now
	x.progress(now.Report)
	return nil
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
