package once

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// DefaultGrace is what Run's grace defaults to: 5 seconds less than Kubernetes
// gives a pod (terminationGracePeriodSeconds), for what comes before and after.
const DefaultGrace = 25 * time.Second

// ErrStillRunning says that a part had not stopped when its time was over. Its
// messages are not lost: what was not committed is rolled back when the process
// ends, and handled again.
var ErrStillRunning = errors.New("still running")

// Closer is a part of a service. One that also has a method
// Run(context.Context) error, as a *message.Router and a *forwarder.Forwarder, is
// run.
type Closer interface {
	Close() error
}

type runner interface {
	Run(ctx context.Context) error
}

// Run runs the parts of a service until ctx ends or one of them does, and then
// stops them one after the other, in the order in which they are given:
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	err := once.Run(ctx, 0, router, fwd, publisher, db)
//
// This is the order of the work: consumers finish what they have in hand, then
// the forwarder sends what they produced, then the publisher and the database,
// which the others needed, are closed. Parts start in the same order; each must be
// running before the next one starts, if it has a method Running.
//
// Stopping takes at most grace, also when a handler ignores its context or a
// broker does not answer. Of the time that is left each part may take one half,
// and the last one all of it. A part that needs longer is [ErrStillRunning]: the
// others are stopped without it, and the process should end. Grace defaults to
// [DefaultGrace].
//
// Run returns nil if all parts stopped without an error after ctx ended. It
// returns the error of a part that failed, or ended by itself, joined with those
// of stopping.
func Run(ctx context.Context, grace time.Duration, parts ...Closer) error {
	if grace <= 0 {
		grace = DefaultGrace
	}
	r := &run{ended: make(chan struct{}, len(parts))}
	for _, part := range parts {
		r.parts = append(r.parts, &running{Closer: part, ended: make(chan struct{})})
	}
	// The parts do not see the end of ctx: they are stopped one after the other.
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer r.cancel()
	err := r.start(ctx)
	if err == nil {
		select {
		case <-ctx.Done():
		case <-r.ended:
			err = r.failed()
		}
	}
	return errors.Join(err, r.stop(time.Now().Add(grace)))
}

type run struct {
	ctx    context.Context
	cancel context.CancelFunc
	parts  []*running
	ended  chan struct{} // has an entry for each part that has ended
}

type running struct {
	Closer

	started bool
	ended   chan struct{} // closed when Run of the part has returned
	err     error         // what it returned, set before
}

// start starts every part that can be run, or returns the error of one that
// failed. It ends early when ctx does.
func (r *run) start(ctx context.Context) error {
	for _, part := range r.parts {
		run, ok := part.Closer.(runner)
		if !ok {
			continue
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end, which is no error of a part
		}
		part.started = true
		go func() {
			part.err = run.Run(r.ctx)
			close(part.ended)
			r.ended <- struct{}{}
		}()
		select {
		case <-part.ready():
		case <-ctx.Done():
		case <-r.ended:
			return r.failed()
		}
	}
	return nil
}

var done = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// ready returns a channel that is closed when the part is running.
func (p *running) ready() <-chan struct{} {
	switch part := p.Closer.(type) {
	case interface{ Running() chan struct{} }: // a *message.Router
		return part.Running()
	case interface{ Running() <-chan struct{} }:
		return part.Running()
	}
	return done
}

// failed is the error of the parts that have ended before they were stopped.
func (r *run) failed() error {
	var errs []error
	for _, part := range r.parts {
		select {
		case <-part.ended:
			if part.err == nil {
				part.err = errors.New("ended by itself")
			}
			errs = append(errs, fmt.Errorf("once: run %T: %w", part.Closer, part.err))
			part.err = nil // is said
		default:
		}
	}
	return errors.Join(errs...)
}

// stop stops all parts before deadline.
func (r *run) stop(deadline time.Time) error {
	var errs []error
	for i, part := range r.parts {
		left := time.Until(deadline)
		if i < len(r.parts)-1 {
			left /= 2
		}
		if err := part.stop(r, left); err != nil {
			errs = append(errs, fmt.Errorf("once: stop %T: %w", part.Closer, err))
		}
	}
	return errors.Join(errs...)
}

// stop closes the part and waits until it has stopped, for as long as left.
func (p *running) stop(r *run, left time.Duration) error {
	closed := make(chan error, 1)
	go func() {
		_, runs := p.Closer.(runner)
		select {
		case <-p.ready():
		default:
			if runs { // a router that is not running waits for handlers that never ran
				if p.started {
					r.cancel()
					<-p.ended
				}
				closed <- p.err
				return
			}
		}
		err := p.Close()
		if p.started {
			<-p.ended
			err = errors.Join(err, p.err)
		}
		closed <- err
	}()
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case err := <-closed:
		return err
	case <-timer.C:
		return fmt.Errorf("%w after %v", ErrStillRunning, left.Round(time.Millisecond))
	}
}
