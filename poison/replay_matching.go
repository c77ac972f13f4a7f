package poison

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/operate"
)

// Replay is the state of a replay of many entries, see
// [Quarantine.ReplayMatching].
type Replay struct {
	// Report contains the counts of the entries, the ID and the State. Pass the ID to
	// Resume. The State is one of the Replay constants.
	Report

	// StopReason says why the replay was paused or stopped.
	StopReason string

	// Source is operate.SourceQuarantine for a replay of this package, and
	// operate.SourceDead or operate.SourceSent for a replay of package deadletter. A
	// replay of package deadletter counts only Total and Replayed.
	Source string

	// Consumer is the consumer in the Filter. If it is "", the replay is for all consumers.
	Consumer string

	// Filter and Plan are the arguments of the call, without Plan.Progress. Filter is
	// empty for a replay of package deadletter.
	Filter Filter
	Plan   Plan

	// Actor and Why come from the Act that began the replay.
	Actor, Why string

	// StartedAt is the time of the start. EndedAt is zero while the replay runs.
	StartedAt, EndedAt time.Time
}

// States of a [Replay], see package operate.
const (
	ReplayRunning   = operate.ReplayRunning
	ReplayPaused    = operate.ReplayPaused
	ReplayStopped   = operate.ReplayStopped
	ReplayAbandoned = operate.ReplayAbandoned
	ReplayFinished  = operate.ReplayFinished
)

// Errors of replays, see package operate.
var (
	ErrReplayRunning  = operate.ErrReplayRunning
	ErrReplayNotFound = operate.ErrReplayNotFound
	ErrReplayFinished = operate.ErrReplayFinished
	ErrReplayLost     = operate.ErrReplayLost
	ErrReplayStopped  = operate.ErrReplayStopped
)

// ReplayMatching gives all entries that match at the time of the call back to the
// consumers that failed. The messages are due immediately, and their attempts and
// crashes are counted from zero again. ReplayMatching waits until every message has
// been handled or is in quarantine again. It returns [ErrNotRunning] if one of the
// consumers is not running.
//
// A consumer can have one running replay at a time: a second replay returns
// [ErrReplayRunning]. A Filter without a consumer means a replay of all consumers. Each
// batch stores the progress in the database. When ctx ends, the replay is paused. If
// the process dies, the replay counts as abandoned when Config.ReplayLease has passed.
// [Quarantine.Resume] continues with the remaining entries, and does not replay a
// message twice. If the Plan or [Quarantine.StopReplay] stops the replay,
// ReplayMatching returns [ErrReplayStopped].
//
// Messages that could not be decoded return to quarantine immediately, without a call
// of the handler, and count as failed. Edit these messages.
//
// If no entry matches, no replay is stored, and the ID of the result is 0. If no entry
// has the Filter.Fingerprint, ReplayMatching returns [ErrNotFound].
//
// If ReplayMatching returns an error after the replay has begun, it also returns the
// latest known state of the replay.
func (q *Quarantine) ReplayMatching(ctx context.Context, act Act, f Filter, plan Plan) (Replay, error) {
	if err := errors.Join(act.Validate(), f.validateChange(), plan.Validate()); err != nil {
		return Replay{}, fmt.Errorf("poison: replay: %w", err)
	}
	plan = withDefaults(plan)
	if err := q.checkRunning(ctx, f, replayStates(plan, f)...); err != nil {
		return Replay{}, fmt.Errorf("poison: replay: %w", err)
	}
	r, err := q.table.beginReplay(ctx, act, f, plan, q.config.ReplayLease)
	if err != nil {
		return Replay{}, fmt.Errorf("poison: replay: %w", err)
	}
	if r.ID == 0 {
		return r.Replay, nil
	}
	return q.run(ctx, r, plan.Progress)
}

// Resume continues a replay that was paused, stopped or abandoned, with the Filter and
// the Plan of the replay. It returns the same results as [Quarantine.ReplayMatching].
// Failures before the call of Resume do not stop the replay again, even with
// Plan.StopOnFailure. This is also true for messages that were replayed before the
// replay stopped, and failed after it had stopped. The parameter progress may be nil.
func (q *Quarantine) Resume(ctx context.Context, act Act, id int64, progress func(Report)) (Replay, error) {
	if err := act.Validate(); err != nil {
		return Replay{}, fmt.Errorf("poison: resume: %w", err)
	}
	r, err := q.table.resumeReplay(ctx, act, id, q.config.ReplayLease)
	if err != nil {
		return Replay{}, fmt.Errorf("poison: resume: %w", err)
	}
	return q.run(ctx, r, progress)
}

// ReplayOf returns the current state of the replay with this ID, or [ErrReplayNotFound].
func (q *Quarantine) ReplayOf(ctx context.Context, id int64) (Replay, error) {
	r, err := q.table.replayOf(ctx, id)
	if err != nil {
		return Replay{}, fmt.Errorf("poison: %w", err)
	}
	return r.Replay, nil
}

// Replays returns a page of replays, the latest first. If the dead letters and the sent
// log are in the same database, the page includes their replays. The parameter before
// is the ID of the last replay of the previous page, or 0.
func (q *Quarantine) Replays(ctx context.Context, before int64) ([]Replay, error) {
	replays, err := q.table.replays(ctx, before, pageSize)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return replays, nil
}
