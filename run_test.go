package once_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/internal/test/kit"
)

// diary records the events of the parts of a service, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) has(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.lines, want) {
		t.Errorf("%q, want %q", d.lines, want)
	}
}

// connection is a part that has only the method Close.
type connection struct {
	*diary

	name  string
	takes time.Duration
	fails error
}

func (c *connection) Close() error {
	time.Sleep(c.takes) //nolint:forbidigo // on the clock of synctest
	c.note("closed " + c.name)
	return c.fails
}

// worker is a part that also has the method Run.
type worker struct {
	connection

	running chan struct{}
	end     chan error // an error with which Run ends by itself
	closing chan struct{}
}

func newWorker(d *diary, name string) *worker {
	return &worker{
		connection: connection{diary: d, name: name},
		running:    make(chan struct{}), end: make(chan error, 1), closing: make(chan struct{}),
	}
}

func (w *worker) Running() <-chan struct{} { return w.running }

func (w *worker) Run(ctx context.Context) error {
	w.note("run " + w.name)
	time.Sleep(time.Second) //nolint:forbidigo // on the clock of synctest
	w.note("running " + w.name)
	close(w.running)
	select {
	case err := <-w.end:
		return err
	case <-w.closing:
	case <-ctx.Done():
	}
	return nil
}

func (w *worker) Close() error {
	err := w.connection.Close()
	close(w.closing)
	return err
}

// Parts that produce work stop before the parts that they need.
func TestRunStopsPartsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		parts := []io.Closer{newWorker(d, "router"), newWorker(d, "forwarder"), &connection{diary: d, name: "db"}}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		kit.Check(t, once.Run(ctx, 0, parts...))
		d.has(t, "run router", "running router", "run forwarder", "running forwarder", "closed router", "closed forwarder", "closed db")
	})
}

func TestRunEndsWhenAPartEnds(t *testing.T) {
	for name, c := range map[string]struct {
		fails error
		says  string
	}{
		"fails":             {errors.New("no tables"), "once: run *once_test.worker: no tables"},
		"names its package": {fmt.Errorf("once_test: %w", errors.New("no tables")), "once: run: once_test: no tables"},
		"ends by itself":    {nil, "once: run *once_test.worker: ended by itself"},
		"fails at closing":  {errors.New("no tables"), "once: run *once_test.worker: no tables\nonce: stop *once_test.connection: broken"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &diary{}
				router, forwarder, db := newWorker(d, "router"), newWorker(d, "forwarder"), &connection{diary: d, name: "db"}
				if strings.Contains(c.says, "broken") {
					db.fails = errors.New("broken")
				}
				time.AfterFunc(time.Minute, func() { forwarder.end <- c.fails })
				if err := once.Run(t.Context(), 0, router, forwarder, db); err == nil || err.Error() != c.says {
					t.Errorf("Run says %v", err)
				}
				d.has(t, "run router", "running router", "run forwarder", "running forwarder", "closed router", "closed forwarder", "closed db")
			})
		})
	}
}

// Each part may use half of the remaining time, and the last part all of it, so Run
// returns within its grace period.
func TestRunStopsWithinItsGrace(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{0: 25 * time.Second, 8 * time.Second: 8 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			d := &diary{}
			parts := []io.Closer{
				&connection{diary: d, name: "a", takes: time.Hour},
				&connection{diary: d, name: "b", takes: time.Second},
				&connection{diary: d, name: "c", takes: time.Hour},
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			began := time.Now()
			err := once.Run(ctx, grace, parts...)
			if took := time.Since(began); took != want {
				t.Errorf("Run took %v, want %v", took, want)
			}
			remedy := " of the grace of " + want.String() + ": exit the process, its unfinished messages are handled again"
			says := "once: stop *once_test.connection: still running after " + (want / 2).String() + remedy +
				"\nonce: stop *once_test.connection: still running after " + (want/2 - time.Second).String() + remedy
			if !errors.Is(err, once.ErrStillRunning) || err.Error() != says {
				t.Errorf("Run says %v, want %s", err, says)
			}
			d.has(t, "closed b")
			time.Sleep(2 * time.Hour) //nolint:forbidigo // on the clock of synctest, until all have ended
		})
	}
}

// Watermill's Close waits for the handlers of a router that never ran. Run does
// not wait, and returns only the error of the start.
func TestRunDoesNotWaitForARouterThatDidNotStart(t *testing.T) {
	t.Parallel()
	d := &diary{}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}) // its default close timeout is 30 seconds
	kit.OK(t, err)
	router.AddConsumerHandler("h", "t", gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{}), nothing)
	router.AddPlugin(func(*message.Router) error { return errors.New("no tables") })
	err = once.Run(t.Context(), 4*time.Second, router, newWorker(d, "forwarder"), &connection{diary: d, name: "db"})
	says := "once: run *message.Router: cannot initialize plugin PLUGIN: no tables"
	if err == nil || address.ReplaceAllString(err.Error(), "PLUGIN") != says {
		t.Errorf("Run says %v", err)
	}
	d.has(t, "closed db")
}

// starter is a part that waits for its broker at the start.
type starter struct {
	worker

	waits chan struct{}
}

func (s *starter) Run(ctx context.Context) error {
	close(s.waits)
	<-ctx.Done()
	return fmt.Errorf("cannot subscribe: %w", ctx.Err())
}

// A service that is stopped during its start ends without an error.
func TestRunIsStoppedDuringItsStart(t *testing.T) {
	t.Parallel()
	d := &diary{}
	part := &starter{worker: *newWorker(d, "router"), waits: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- once.Run(ctx, time.Minute, part, newWorker(d, "forwarder"), &connection{diary: d, name: "db"})
	}()
	<-part.waits
	cancel()
	kit.OK(t, <-ended)
	d.has(t, "closed db")
}

// If a handler ignores its context, Run waits for the router only for half of the grace
// period. Then Run stops the remaining parts.
func TestRunDoesNotWaitForAHandlerThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	d := &diary{}
	transport := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}) // its default close timeout is 30 seconds
	kit.OK(t, err)
	inHand, release := make(chan struct{}), make(chan struct{})
	router.AddConsumerHandler("stubborn", "t", transport, func(*message.Message) error {
		close(inHand)
		<-release
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- once.Run(ctx, 4*time.Second, router, &connection{diary: d, name: "db"}) }()
	<-router.Running()
	kit.OK(t, transport.Publish("t", message.NewMessage("m", nil)))
	<-inHand
	cancel()
	err = <-ended
	if took := time.Since(began); took > 25*time.Second {
		t.Errorf("Run took %v", took)
	}
	const says = "once: stop *message.Router: still running after 2s of the grace of 4s: " +
		"exit the process, its unfinished messages are handled again"
	if err == nil || err.Error() != says {
		t.Errorf("Run says %v", err)
	}
	d.has(t, "closed db")
	close(release)
}

// Callers can tell a refused login from other errors.
func TestErrorOfTheBrokerIsWrapped(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	b := newStartBench(t, kit.SQLite(t)).up()
	b.in = pinged{b.in, refused}
	b.consumer(once.ConsumerConfig{}, "mail")
	if err := b.router.Run(t.Context()); !errors.Is(err, refused) {
		t.Errorf("Run: got %v, want an error that wraps %q", err, refused)
	}
}
