package poison

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
)

const (
	// replayBatch is how many entries are given back in one transaction.
	replayBatch = 200

	// Pauses between two looks at a replay. Longer ones follow looks that take
	// long, so that looking stays a small part of the work.
	shortestLook = 50 * time.Millisecond
	lookShare    = 10

	longestSilence = time.Second

	// endWithin is how long the last word about a replay may take when its
	// context has ended.
	endWithin = 10 * time.Second
)

// run is a replay that this process has the lease of.
type run struct {
	*Quarantine

	replay   *parked.Replay
	progress func(Replay)
	told     [5]int64 // what progress was told, and when
	toldAt   time.Time
	known    int64 // failures that it goes on in spite of
	all      bool  // nothing is left to be given back

	allowed float64 // by the rate, since paid
	paid    time.Time
}

func (s *Quarantine) run(ctx context.Context, r *parked.Replay, progress func(Replay)) (Replay, error) {
	if progress == nil {
		progress = func(Replay) {}
	}
	x := &run{Quarantine: s, replay: r, progress: progress, known: r.KnownFailures(), allowed: 1, paid: time.Now()}
	err := x.loop(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrReplayStopped) {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
		defer cancel()
		err = ctx.Err()
		if endErr := x.end(end, parked.ReplayPaused, "its context ended"); endErr != nil {
			err = fmt.Errorf("%w, and it is not known to be paused: %w", err, endErr)
		}
	}
	if err != nil {
		err = fmt.Errorf("poison: replay %d: %w", r.ID, err)
	}
	return shownReplay(x.replay), err
}

// loop takes steps until nothing is left. Where the database gives way to other
// work, as SQLite does to a long handler, the step is taken anew: what was
// committed is known from the row.
func (x *run) loop(ctx context.Context) error {
	for {
		pause, done, err := x.step(ctx)
		if done || (err != nil && !dialect.Contended(err)) {
			return err
		}
		if err := sleep(ctx, min(pause, x.config.ReplayLease/3)); err != nil {
			return err
		}
	}
}

// step looks, and ends the replay or gives back what there is room for. It says
// how long to wait before the next one.
func (x *run) step(ctx context.Context) (pause time.Duration, done bool, err error) {
	looked := time.Now()
	seen, err := x.parked.BeatReplay(ctx, x.replay, x.config.ReplayLease)
	if err != nil {
		return shortestLook, false, err
	}
	x.replay = seen
	pause = max(shortestLook, lookShare*time.Since(looked))
	x.tell(looked)

	canary := seen.Plan.Canary > 0 && seen.Replayed <= int64(seen.Plan.Canary)
	switch {
	case seen.Failed > x.known && (canary || seen.Plan.StopOnFailure):
		err = x.stop(ctx, canary)
		return pause, errors.Is(err, ErrReplayStopped), err
	case x.all && seen.Waiting == 0:
		err = x.end(ctx, parked.ReplayFinished, "")
		return pause, err == nil, err
	}
	return pause, false, x.release(ctx, x.room())
}

// tell says how far it is, when that has changed or nothing was said for long.
func (x *run) tell(now time.Time) {
	r := x.replay
	counts := [...]int64{r.Total, r.Replayed, r.Resolved, r.Failed, r.Waiting}
	if counts == x.told && now.Sub(x.toldAt) < longestSilence {
		return
	}
	x.told, x.toldAt = counts, now
	x.progress(shownReplay(r))
}

// room is how many messages may be given back now.
func (x *run) room() int64 {
	r := x.replay
	room := int64(r.Plan.Window) - r.Waiting
	if first := int64(r.Plan.Canary); r.Replayed < first {
		room = min(room, first-r.Replayed)
	} else if r.Replayed == first && r.Waiting > 0 {
		return 0
	}
	if limit := int64(r.Filter.Limit); limit > 0 {
		room = min(room, limit-r.Replayed)
		x.all = x.all || r.Replayed >= limit
	}
	if r.Plan.Rate > 0 {
		rate, now := float64(r.Plan.Rate), time.Now()
		x.allowed = min(x.allowed+rate*now.Sub(x.paid).Seconds(), rate) // a wait is not made up for at once
		x.paid = now
		room = int64(min(float64(room), x.allowed)) // as an integer the rate may be too large
	}
	return room
}

func (x *run) release(ctx context.Context, room int64) error {
	for room > 0 && !x.all {
		moved, more, err := x.parked.AdvanceReplay(ctx, x.replay, int(min(room, replayBatch)), x.config.ReplayLease)
		if errors.Is(err, ErrReplayLost) {
			return nil // the next look takes the lease again, or finds that it cannot
		}
		if err != nil {
			return err
		}
		x.all = !more
		room -= moved
		x.allowed -= float64(moved)
		x.instruments.replayed.Add(moved, 0)
	}
	return nil
}

func (x *run) stop(ctx context.Context, canary bool) error {
	reason := fmt.Sprintf("%d failed again", x.replay.Failed-x.known)
	if canary {
		reason += " of the canary"
	}
	if err := x.end(ctx, parked.ReplayStopped, reason); err != nil {
		return err
	}
	return fmt.Errorf("%w: %s", ErrReplayStopped, reason)
}

func (x *run) end(ctx context.Context, state, reason string) error {
	seen, err := x.parked.EndReplay(ctx, x.replay, state, reason)
	if err != nil {
		return err
	}
	x.replay = seen
	x.progress(shownReplay(seen))
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
