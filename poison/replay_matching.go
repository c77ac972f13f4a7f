package poison

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/parked"
)

// Replay is the state of a replay of many entries, see
// [Quarantine.ReplayMatching].
type Replay struct {
	// ID is the argument of Resume.
	ID int64

	// State is one of the Replay constants. StopReason says why the replay was
	// paused or stopped.
	State, StopReason string

	// Total is the number of entries that matched at the start, Replayed the
	// number of them that were given back to their consumer.
	Total, Replayed int

	// Resolved counts the replayed entries that were handled, Failed those that
	// were quarantined again, and Waiting those that still wait.
	Resolved, Failed, Waiting int

	// Consumer is that of the Filter. If it is empty the replay is of all
	// consumers.
	Consumer string

	// Filter and Plan are those of the call, except for Plan.Progress.
	Filter Filter
	Plan   Plan

	// Actor and Why are those of the Act that began the replay.
	Actor, Why string

	// StartedAt is the time of the start. EndedAt is zero while the replay runs.
	StartedAt, EndedAt time.Time
}

// States of a [Replay].
const (
	// ReplayRunning: a process runs the replay.
	ReplayRunning = "running"

	// ReplayPaused: the context of the replay ended. [Quarantine.Resume]
	// continues it.
	ReplayPaused = "paused"

	// ReplayStopped: messages failed again, see Replay.StopReason.
	// [Quarantine.Resume] continues it nevertheless.
	ReplayStopped = "stopped"

	// ReplayAbandoned: the process died or lost the database.
	// [Quarantine.Resume] continues the replay.
	ReplayAbandoned = "abandoned"

	// ReplayFinished: every message was handled or is in quarantine again.
	ReplayFinished = "finished"
)

var (
	// ErrReplayRunning says that another replay of the consumer is running.
	ErrReplayRunning = errors.New("a replay of the consumer is running")

	// ErrReplayNotFound says that there is no replay of that ID.
	ErrReplayNotFound = errors.New("no such replay")

	// ErrReplayFinished says that the replay has no entries left to resume.
	ErrReplayFinished = errors.New("the replay has finished")

	// ErrReplayLost says that the replay did not renew its lease in time, and
	// that another replay has begun or has resumed it.
	ErrReplayLost = errors.New("the lease of the replay ran out")

	// ErrReplayStopped says that messages failed again. The entries that were not
	// replayed yet stay in quarantine.
	ErrReplayStopped = errors.New("the replay was stopped: messages failed again")
)

// Plan configures a replay of many entries. With the zero value all entries are
// replayed as fast as their consumer handles them.
type Plan struct {
	// Canary is the number of messages to replay first. The others follow after
	// all of these have been handled; if one fails, the replay stops. Defaults
	// to none.
	Canary int `json:"canary,omitempty"`

	// Rate is the maximum number of messages to replay per second. Defaults to
	// no limit.
	Rate int `json:"rate,omitempty"`

	// Window is the maximum number of replayed messages that wait for their
	// handler at a time. Defaults to 1,000, and with StopOnFailure to 100.
	Window int `json:"window,omitempty"`

	// StopOnFailure stops the replay when one of its messages is quarantined
	// again. Messages that were replayed before are still handled.
	StopOnFailure bool `json:"stop_on_failure,omitempty"`

	// Force also runs messages that the consumer has handled already: it removes
	// their ids from the inbox, and also replays resolved entries of Filter.IDs.
	// Without Force dedup skips such messages. Even with Force, dedup skips
	// messages that it knows by dedup.Config.Key, and sequence skips messages
	// that are older than the version that it has applied.
	Force bool `json:"force,omitempty"`

	// Progress is called with the state of the replay: after each change, once a
	// second without a change, and at the end. It must return soon. Defaults to
	// nothing.
	Progress func(Replay) `json:"-"`
}

func (p Plan) validate() error {
	var errs []error
	for _, field := range []struct {
		name  string
		value int
	}{{"Canary", p.Canary}, {"Rate", p.Rate}, {"Window", p.Window}} {
		if field.value < 0 {
			errs = append(errs, fmt.Errorf("Plan.%s is %d: negative", field.name, field.value))
		}
	}
	return errors.Join(errs...)
}

func (p Plan) withDefaults() Plan {
	if p.Window == 0 {
		p.Window = 1000
		if p.StopOnFailure {
			p.Window = 100
		}
	}
	return p
}

// states returns the states of the entries that a replay by f includes.
// Resolved entries must be named.
func (p Plan) states(f Filter) []string {
	if p.Force && f.IDs != nil {
		return []string{parked.Quarantined, parked.Resolved}
	}
	return []string{parked.Quarantined}
}

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
// does not run a message twice. A replay that its Plan stops returns
// [ErrReplayStopped].
//
// Messages that could not be decoded return to quarantine at once without a call
// of the handler, and count as failed: edit them.
//
// With an error ReplayMatching returns the latest known state of the replay, if
// it began.
func (q *Quarantine) ReplayMatching(ctx context.Context, act Act, f Filter, plan Plan) (Replay, error) {
	if err := errors.Join(act.validate(), f.validateChange(), plan.validate()); err != nil {
		return Replay{}, fmt.Errorf("poison: replay: %w", err)
	}
	plan = plan.withDefaults()
	if err := q.checkRunning(ctx, f, plan.states(f)...); err != nil {
		return Replay{}, fmt.Errorf("poison: replay: %w", err)
	}
	r, err := q.table.beginReplay(ctx, act, f, plan, q.config.ReplayLease)
	if err != nil {
		return Replay{}, fmt.Errorf("poison: replay: %w", err)
	}
	return q.run(ctx, r, plan.Progress)
}

// Resume continues a replay that was paused, stopped or abandoned, with its own
// Filter and Plan, and returns like [Quarantine.ReplayMatching]. Failures up to
// now do not stop the replay again, even if the Plan stops on failures: neither
// the failures that stopped it, nor later failures of messages that were
// replayed before the stop. progress may be nil.
func (q *Quarantine) Resume(ctx context.Context, act Act, id int64, progress func(Replay)) (Replay, error) {
	if err := act.validate(); err != nil {
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

// Replays returns a page of replays, the latest first. before is the ID of the
// last replay of the previous page, or 0.
func (q *Quarantine) Replays(ctx context.Context, before int64) ([]Replay, error) {
	replays, err := q.table.replays(ctx, before, pageSize)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	return replays, nil
}
