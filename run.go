package once

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// defaultGrace is 5 seconds less than Kubernetes' default terminationGracePeriodSeconds, for code
// outside of Run, such as an HTTP server that shuts down before.
const defaultGrace = 25 * time.Second

// ErrStillRunning means that a part did not stop in time. No message is lost: transactions without
// a commit are rolled back when the process ends, and their messages are handled again.
var ErrStillRunning = errors.New("still running")

type runner interface {
	Run(ctx context.Context) error
}

// Run runs the parts of a service until ctx ends or a part ends. It then closes the parts one after
// another, in the order of the arguments. A part with a method Run(context.Context) error runs
// until then, such as a *message.Router or a *forwarder.Forwarder:
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	err := once.Run(ctx, 0, router, fwd, publisher, db)
//
// In this example, consumers first finish the messages in flight, then the forwarder sends what
// they produced, and then the publisher and the database close. Parts start in the same order, each
// when the one before is running, if that has a method Running.
//
// Stopping takes at most grace, even if a handler ignores its context or a broker does not answer.
// Each part may use half of the remaining time, and the last one all of it. If a part needs longer,
// Run stops the others and returns [ErrStillRunning]; the process should then exit. If grace is 0,
// it defaults to 25 seconds.
//
// Run returns nil if ctx ended and all parts stopped without an error. Otherwise it returns the
// error of the part that failed or ended by itself, joined with those of stopping.
func Run(ctx context.Context, grace time.Duration, parts ...io.Closer) error {
	if grace <= 0 {
		grace = defaultGrace
	}
	r := &run{grace: grace, ended: make(chan struct{}, len(parts))}
	for _, part := range parts {
		r.parts = append(r.parts, &running{Closer: part, ended: make(chan struct{})})
	}
	// Run stops the parts in order, so they must not see the end of ctx.
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
	grace  time.Duration
	ctx    context.Context
	cancel context.CancelFunc
	parts  []*running
	ended  chan struct{} // receives a value for each part that has ended
}

type running struct {
	io.Closer

	started bool
	ended   chan struct{} // closed when Run of the part has returned
	err     error         // result of Run; set before ended is closed
}

// start returns the error of a part that fails meanwhile, and nil if ctx ends first.
func (r *run) start(ctx context.Context) error {
	for _, part := range r.parts {
		run, ok := part.Closer.(runner)
		if !ok {
			continue
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is no error of a part
		}
		part.started = true
		go func() {
			defer func() { // deferred, because the part may end its goroutine
				close(part.ended)
				r.ended <- struct{}{}
			}()
			part.err = run.Run(r.ctx)
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

var closedChan = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

func (p *running) ready() <-chan struct{} {
	switch part := p.Closer.(type) {
	case interface{ Running() chan struct{} }: // a *message.Router
		return part.Running()
	case interface{ Running() <-chan struct{} }:
		return part.Running()
	}
	return closedChan
}

func (r *run) failed() error {
	var errs []error
	for _, part := range r.parts {
		select {
		case <-part.ended:
			if part.err == nil {
				part.err = errors.New("ended by itself")
			}
			errs = append(errs, part.failure("run", part.err))
			part.err = nil // stop must not report it again
		default:
		}
	}
	return errors.Join(errs...)
}

// failure adds the name of the part, unless the error begins with its package, as in this module.
func (p *running) failure(verb string, err error) error {
	name := fmt.Sprintf("%T", p.Closer)
	pkg, _, _ := strings.Cut(strings.TrimLeft(name, "*"), ".")
	if strings.HasPrefix(fmt.Sprint(err), pkg+": ") {
		return fmt.Errorf("once: %s: %w", verb, err)
	}
	return fmt.Errorf("once: %s %s: %w", verb, name, err)
}

func (r *run) stop(deadline time.Time) error {
	var errs []error
	for i, part := range r.parts {
		left := time.Until(deadline)
		if i < len(r.parts)-1 {
			left /= 2
		}
		if err := part.stop(r, left); err != nil {
			errs = append(errs, part.failure("stop", err))
		}
	}
	return errors.Join(errs...)
}

// left limits the wait until the part has stopped.
func (p *running) stop(r *run, left time.Duration) error {
	closed := make(chan error, 1)
	go func() {
		_, runs := p.Closer.(runner)
		select {
		case <-p.ready():
		default:
			if runs { // Close of a router that is not running waits for handlers that never ran
				err := error(nil)
				if p.started {
					r.cancel()
					<-p.ended
					if err = p.err; errors.Is(err, context.Canceled) { // its start was stopped, as asked
						err = nil
					}
				}
				closed <- err
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
		return fmt.Errorf("%w after %v of the grace of %v: exit the process, its unfinished messages are handled again",
			ErrStillRunning, left.Round(time.Millisecond), r.grace)
	}
}
