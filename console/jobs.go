package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/operate"
)

const (
	// Each change needs a database connection.
	mostJobs = 4

	keptJobs = 200
)

var (
	errClosed = errors.New("the console is closed")
	errNoJob  = errors.New("a process knows only the latest changes that it has run itself; the audit log has all changes")
	errPanic  = errors.New("the change panicked")
)

// busyError means that a change cannot start before another change has ended.
type busyError struct{ text string }

func (e busyError) Error() string { return e.text }

type report struct {
	Total, Done int     // Total is 0 if it is unknown
	Skipped     []int64 // IDs of messages that were left out
	Replay      operate.Report
}

// work makes a change. It calls progress from time to time, and stops when ctx ends.
type work func(ctx context.Context, progress func(report)) (report, error)

// job is a change in a goroutine, which continues without the browser.
type job struct {
	ID    string
	Title string
	Who   operate.Act
	Back  string `api:"-"` // page from which the job was started

	LeftOut string // see act.LeftOut

	lock   string // two jobs with the same lock cannot run at the same time
	cancel context.CancelCauseFunc
	moved  chan struct{} // closed at the first progress, or when the job ends
	once   sync.Once
	ended  chan struct{}

	mu      sync.Mutex
	state   jobState
	history series
}

type jobState struct {
	Started, Ended time.Time
	Report         report
	Stopping       bool
	Err            error  `api:"-"` // may name hosts
	Chart          string `api:"-"`
}

func (s jobState) Running() bool { return s.Ended.IsZero() }

func (s jobState) Stopped() bool {
	return !s.Running() && (s.Stopping && s.Err != nil || errors.Is(s.Err, operate.ErrReplayStopped))
}

func (s jobState) Problem() string {
	switch {
	case s.Err == nil || s.Stopped():
		return ""
	case denied(s.Err):
		return noRight
	case expected(s.Err) != nil:
		return sentence(s.Err)
	}
	return "It failed. The log of the service says why."
}

func (j *job) State() jobState {
	j.mu.Lock()
	defer j.mu.Unlock()
	state := j.state
	state.Chart = j.history.chart("Done", "Failed again", "Waiting")
	return state
}

func (j *job) progress(r report) {
	j.mu.Lock()
	j.state.Report = r
	j.history.add(time.Now(), float64(r.Done), float64(r.Replay.Failed), float64(r.Replay.Waiting))
	j.mu.Unlock()
	j.once.Do(func() { close(j.moved) })
}

// A replay stores the actor's name in its reason.
func (j *job) stop(actor string) {
	j.mu.Lock()
	j.state.Stopping = true
	j.mu.Unlock()
	j.cancel(fmt.Errorf("stopped in the console by %s", actor))
}

// jobs are the changes that people have started in this process, also some that have ended.
type jobs struct {
	logger watermill.LoggerAdapter
	ctx    context.Context
	cancel context.CancelCauseFunc
	group  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	all    []*job // in the order of their start
}

func newJobs(logger watermill.LoggerAdapter) *jobs {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &jobs{logger: logger, ctx: ctx, cancel: cancel}
}

// If another job must end first, start returns a busyError.
func (all *jobs) start(j *job, do work) error {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed {
		return errClosed
	}
	running := 0
	for _, other := range all.all {
		if !other.State().Running() {
			continue
		}
		running++
		if other.lock == j.lock {
			return busyError{fmt.Sprintf("%s by %s is running. Wait until it has ended, or stop it", other.Title, other.Who.Actor)}
		}
	}
	if running >= mostJobs {
		return busyError{fmt.Sprintf("%d changes are running, which is the limit. Wait until one of them has ended", running)}
	}
	if len(all.all) >= keptJobs { // delete the oldest job that has ended
		ended := slices.IndexFunc(all.all, func(old *job) bool { return !old.State().Running() })
		all.all = slices.Delete(all.all, ended, ended+1)
	}
	ctx, cancel := context.WithCancelCause(all.ctx)
	j.ID, j.cancel, j.moved, j.ended = rand.Text()[:12], cancel, make(chan struct{}), make(chan struct{})
	j.state.Started = time.Now()
	all.all = append(all.all, j)
	all.group.Go(func() {
		defer cancel(nil)
		all.run(ctx, j, do)
	})
	return nil
}

// background calls work, which must not change anything, in a goroutine until close.
func (all *jobs) background(work func(ctx context.Context)) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if !all.closed {
		all.group.Go(func() { work(all.ctx) })
	}
}

func (all *jobs) run(ctx context.Context, j *job, do work) {
	latest, err := all.perform(ctx, j, do)
	j.mu.Lock()
	j.history.last = time.Time{} // the state at the end must be in the chart, even soon after the last sample
	j.mu.Unlock()
	j.progress(latest)
	j.mu.Lock()
	j.state.Err, j.state.Ended = err, time.Now()
	stopped := j.state.Stopping
	j.mu.Unlock()
	close(j.ended)
	fields := watermill.LogFields{"change": j.Title, "actor": j.Who.Actor, "done": latest.Done, "skipped": len(latest.Skipped)}
	if err != nil && !stopped && ctx.Err() == nil && expected(err) == nil {
		all.logger.Error("Console change failed", err, fields)
		return
	}
	all.logger.Info("Console change has ended", fields)
}

// A mistake in a change must not end the service: a panic becomes errPanic.
func (all *jobs) perform(ctx context.Context, j *job, do work) (latest report, err error) {
	defer func() {
		if p := recover(); p != nil {
			all.logger.Error("Console change panicked", fmt.Errorf("panic: %v", p), watermill.LogFields{"stack": string(debug.Stack())})
			latest, err = j.State().Report, errPanic
		}
	}()
	return do(ctx, j.progress)
}

func (all *jobs) get(id string) *job {
	return all.find(func(j *job) bool { return j.ID == id })
}

// replaying finds only replays of the quarantine.
func (all *jobs) replaying(id int64) *job {
	return all.find(func(j *job) bool { return j.State().Report.Replay.ID == id })
}

func (all *jobs) find(match func(j *job) bool) *job {
	for _, j := range all.latest() {
		if match(j) {
			return j
		}
	}
	return nil
}

func (all *jobs) latest() []*job {
	all.mu.Lock()
	defer all.mu.Unlock()
	list := slices.Clone(all.all)
	slices.Reverse(list)
	return list
}

func (all *jobs) close() {
	all.mu.Lock()
	all.closed = true
	all.mu.Unlock()
	all.cancel(errClosed)
	all.group.Wait()
}
