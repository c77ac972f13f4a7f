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
	// Report has the ID, which is the argument of Resume, the State, which is one
	// of the Replay constants, and the counts of the entries.
	Report

	// StopReason says why the replay was paused or stopped.
	StopReason string

	// Source is operate.SourceQuarantine, or SourceDead or SourceSent for a replay of
	// package deadletter. Such a replay counts only Total and Replayed.
	Source string

	// Consumer is that of the Filter. If it is empty the replay is of all
	// consumers.
	Consumer string

	// Filter and Plan are those of the call, except for Plan.Progress. Filter is empty
	// for a replay of package deadletter.
	Filter Filter
	Plan   Plan

	// Actor and Why are those of the Act that began the replay.
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

// ReplayMatching gives all entries that match now back to the consumers that
// failed them, due at once and with fresh budgets. It waits until every message
// has been handled or is in quarantine again. It returns [ErrNotRunning] if one
// of the consumers is not running.
//
// A consumer has one running replay at a time: another one is
// [ErrReplayRunning]. A Filter without a consumer is a replay of all consumers.
// Each batch stores the progress in the database. When ctx ends the replay is
// paused, and after the death of the process it is abandoned as soon as
// Config.ReplayLease has passed. [Quarantine.Resume] continues with the rest and
// does not run a message twice. A replay that its Plan or
// [Quarantine.StopReplay] stops returns [ErrReplayStopped].
//
// Messages that could not be decoded return to quarantine at once without a call
// of the handler, and count as failed: edit them.
//
// If no entry matches, no replay is stored and its ID is 0; an unknown
// Filter.Fingerprint is [ErrNotFound].
//
// With an error ReplayMatching returns the latest known state of the replay, if
// it began.
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

// Resume continues a replay that was paused, stopped or abandoned, with its own
// Filter and Plan, and returns like [Quarantine.ReplayMatching]. Failures up to
// now do not stop the replay again, even if the Plan stops on failures: neither
// the failures that stopped it, nor later failures of messages that were
// replayed before the stop. progress may be nil.
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

// ReplayOf returns the current state of the replay with that ID, or
// [ErrReplayNotFound].
func (q *Quarantine) ReplayOf(ctx context.Context, id int64) (Replay, error) {
	r, err := q.table.replayOf(ctx, id)
	if err != nil {
		return Replay{}, fmt.Errorf("poison: %w", err)
	}
	return r.Replay, nil
}

// Replays returns a page of replays, also of dead letters and of the sent log in these
// tables, the latest first. before is the ID of the
// last replay of the previous page, or 0.
func (q *Quarantine) Replays(ctx context.Context, before int64) ([]Replay, error) {
	replays, err := q.table.replays(ctx, before, pageSize)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return replays, nil
}
