package poison

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/watermill-once/once/internal/parked"
)

// Replay is a replay of many entries and how far it is, as [Quarantine.ReplayMatching]
// keeps it.
type Replay struct {
	// ID is what Resume is given.
	ID int64

	// State is one of the Replay constants, and StopReason why it was paused or
	// stopped.
	State, StopReason string

	// Total is how many entries matched when it began, and Replayed how many of
	// those were given back to their consumer.
	Total, Replayed int

	// Resolved is how many of those that were given back were handled, Failed how
	// many are in quarantine again, and Waiting how many are still to be handled.
	Resolved, Failed, Waiting int

	// Consumer is that of the Filter; empty: all of them.
	Consumer string

	// Filter and Plan are as they were given, but for Plan.Progress.
	Filter Filter
	Plan   Plan

	// Actor and Why are those of the Act that began it.
	Actor, Why string

	// StartedAt is when it began; EndedAt is zero while it runs.
	StartedAt, EndedAt time.Time
}

func shownReplay(r *parked.Replay) Replay {
	p := r.Plan
	return Replay{
		ID: r.ID, State: r.State, StopReason: r.StopReason, Total: int(r.Total), Replayed: int(r.Replayed),
		Resolved: int(r.Resolved), Failed: int(r.Failed), Waiting: int(r.Waiting), Consumer: r.Consumer, Filter: Filter(r.Filter),
		Plan:  Plan{Canary: p.Canary, Rate: p.Rate, Window: p.Window, StopOnFailure: p.StopOnFailure, Force: p.Force},
		Actor: r.Actor, Why: r.Why, StartedAt: r.StartedAt, EndedAt: r.EndedAt,
	}
}

// States of a [Replay].
const (
	// ReplayRunning: somebody is at it.
	ReplayRunning = parked.ReplayRunning

	// ReplayPaused: its context ended. [Store.Resume] goes on.
	ReplayPaused = parked.ReplayPaused

	// ReplayStopped: messages failed again, see Replay.StopReason.
	// [Store.Resume] goes on all the same.
	ReplayStopped = parked.ReplayStopped

	// ReplayAbandoned: its process died, or lost the database.
	// [Store.Resume] goes on.
	ReplayAbandoned = parked.ReplayAbandoned

	// ReplayFinished: every message was handled, or is in quarantine again.
	ReplayFinished = parked.ReplayFinished
)

var (
	// ErrReplayRunning says that the consumer has a replay under way already.
	ErrReplayRunning = parked.ErrReplayRunning

	// ErrReplayNotFound says that there is no replay of that ID.
	ErrReplayNotFound = parked.ErrReplayNotFound

	// ErrReplayFinished says that there is nothing to resume.
	ErrReplayFinished = parked.ErrReplayFinished

	// ErrReplayLost says that the replay could not renew its lease in time, and
	// another has begun or has taken it up.
	ErrReplayLost = parked.ErrReplayLost

	// ErrReplayStopped says that messages failed again, and the others were
	// left in quarantine.
	ErrReplayStopped = errors.New("the replay was stopped: messages failed again")
)

// Plan is how to replay many messages. With its zero value all are given back
// as fast as their consumer takes them.
type Plan struct {
	// Canary is how many messages go first. The others follow when these have
	// been handled, all of them; otherwise the replay stops. Defaults to none.
	Canary int

	// Rate is how many messages to give back each second at most. Defaults to
	// no limit.
	Rate int

	// Window is how many messages may wait to be handled at a time. Defaults
	// to 1,000, and with StopOnFailure to 100.
	Window int

	// StopOnFailure stops when one of them is quarantined again. Those that
	// had been given back by then are handled all the same.
	StopOnFailure bool

	// Force runs messages that the consumer has done already: what the inbox
	// knows of their ids is removed. It also takes entries of Filter.IDs that
	// were resolved. Without it they are skipped when they come to dedup; and so
	// are, all the same, those that it knows by dedup.Config.Key, and those that
	// sequence finds to be older than what was applied.
	Force bool

	// Progress is called with how far it is: when that has changed, once a second
	// if it has not, and at the end. It must return soon. Defaults to nothing.
	Progress func(Replay)
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

func (p Plan) stored() parked.Plan {
	if p.Window == 0 {
		p.Window = 1000
		if p.StopOnFailure {
			p.Window = 100
		}
	}
	return parked.Plan{Canary: p.Canary, Rate: p.Rate, Window: p.Window, StopOnFailure: p.StopOnFailure, Force: p.Force}
}

// ReplayMatching gives what matches now back to the consumers that failed it,
// due at once and with fresh budgets, and waits until all of it has been handled
// or is in quarantine again. It is [ErrNotRunning] if nobody
// runs one of the consumers.
//
// One replay of a consumer runs at a time: another is [ErrReplayRunning]; one
// that names no consumer is of all. How far it has come is kept in the database
// with every batch. When ctx ends it is paused, and when the process dies it is
// abandoned after Config.ReplayLease; [Quarantine.Resume] goes on with the rest,
// and runs nothing again. Stopped by its Plan it returns [ErrReplayStopped].
//
// Messages that could not be decoded are in quarantine again at once, without
// being run, and count as failed: edit them.
//
// The Replay is returned also with an error, as far as it came to be one.
func (s *Quarantine) ReplayMatching(ctx context.Context, act Act, f Filter, plan Plan) (Replay, error) {
	if err := errors.Join(parked.Act(act).Validate(), parked.Filter(f).ValidateAct(), plan.validate()); err != nil {
		return Replay{}, fmt.Errorf("poison: replay: %w", err)
	}
	if err := s.running(ctx, parked.Filter(f), plan.stored().States(f.IDs != nil)...); err != nil {
		return Replay{}, fmt.Errorf("poison: replay: %w", err)
	}
	r, err := s.parked.BeginReplay(ctx, parked.Act(act), parked.Filter(f), plan.stored(), s.config.ReplayLease)
	if err != nil {
		return Replay{}, fmt.Errorf("poison: replay: %w", err)
	}
	return s.run(ctx, r, plan.Progress)
}

// Resume goes on with a replay that was paused, stopped or abandoned, by its
// own Filter and Plan, and returns as [Quarantine.ReplayMatching] does. When it was
// stopped, what has failed until now does not stop it again: neither what it was
// stopped for, nor what had been given back by then and failed later. progress
// may be nil.
func (s *Quarantine) Resume(ctx context.Context, act Act, id int64, progress func(Replay)) (Replay, error) {
	if err := parked.Act(act).Validate(); err != nil {
		return Replay{}, fmt.Errorf("poison: resume: %w", err)
	}
	r, err := s.parked.ResumeReplay(ctx, parked.Act(act), id, s.config.ReplayLease)
	if err != nil {
		return Replay{}, fmt.Errorf("poison: resume: %w", err)
	}
	return s.run(ctx, r, progress)
}

// ReplayOf returns the replay with that ID as it is now, or [ErrReplayNotFound].
func (s *Quarantine) ReplayOf(ctx context.Context, id int64) (Replay, error) {
	r, err := s.parked.ReplayOf(ctx, id)
	if err != nil {
		return Replay{}, fmt.Errorf("poison: %w", err)
	}
	return shownReplay(r), nil
}

// Replays returns a page of replays, the latest first. before is the ID of the
// last one of the page before, or 0.
func (s *Quarantine) Replays(ctx context.Context, before int64) ([]Replay, error) {
	all, err := s.parked.Replays(ctx, before, page)
	if err != nil {
		return nil, fmt.Errorf("poison: %w", err)
	}
	replays := make([]Replay, len(all))
	for i := range all {
		replays[i] = shownReplay(&all[i])
	}
	return replays, nil
}
