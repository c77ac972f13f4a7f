package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
)

// entry is a message that waits for its batch, in the goroutine that brought
// it. It is settled once.
type entry struct {
	msg        *message.Message
	original   *message.Message // for the next try: a handler may change msg
	ctx        context.Context
	identities []identity
	early      error // that it came before its turn, as was found when it was tried last
	settled    chan error
}

func (e *entry) settle(err error) { e.settled <- err }

// errAlone says that a message is to be handled in a transaction of its own.
var errAlone = errors.New("to be handled alone")

// lines are those of one handler, which may serve several consumers.
type lines struct {
	*Inbox

	work work

	mu  sync.Mutex
	all map[string]*line
}

func (i *Inbox) newLines(w work) *lines {
	return &lines{Inbox: i, work: w, all: map[string]*line{}}
}

func (l *lines) of(consumer string) *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all[consumer] == nil {
		l.all[consumer] = newLine(l.Inbox, consumer, l.work)
	}
	return l.all[consumer]
}

// once is [Inbox.once] for batches. It returns when msg is settled, and never
// leaves while a transaction has it.
func (l *lines) once(msg *message.Message, consumer string) error {
	identities, err := l.identify(msg, consumer)
	if err != nil {
		return err
	}
	e := &entry{
		msg: msg, original: parked.Snapshot(msg), ctx: msg.Context(),
		identities: identities, settled: make(chan error, 1),
	}
	line := l.of(consumer)
	if !parked.FailedBefore(e.ctx) { // it would spoil the batch of others
		line.join(e)
		select {
		case err = <-e.settled:
		case <-e.ctx.Done():
			if line.leave(e) {
				return ended(e.ctx)
			}
			err = <-e.settled
		}
		if !errors.Is(err, errAlone) {
			return err
		}
	}
	return line.alone(e)
}

func ended(ctx context.Context) error {
	return disposition.NotCalled(fmt.Errorf("dedup: while waiting for a batch: %w", context.Cause(ctx)))
}

// line is where the messages of one consumer wait, and are taken off in
// batches. There is a goroutine for each batch that is gathered or handled,
// and none while nothing waits.
type line struct {
	*Inbox

	consumer string
	work     work
	permits  chan struct{} // for messages alone

	mu        sync.Mutex
	waiting   []*entry
	busy      int           // batches that are gathered or handled
	gathering bool          // one is gathered
	latest    int           // how many the batch before had
	enough    chan struct{} // so many wait again
}

// mostAlone bounds how many messages are handled alone at once: one that
// waits for a lock is not to hold up the others.
const mostAlone = 4

func newLine(i *Inbox, consumer string, w work) *line {
	permits := mostAlone
	if i.dialect.SQLite() {
		permits = 1 // it has one writer
	}
	return &line{
		Inbox: i, consumer: consumer, work: w,
		permits: make(chan struct{}, permits), latest: i.config.Batch.Size, enough: make(chan struct{}, 1),
	}
}

func (l *line) join(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, e)
	l.staff()
	if len(l.waiting) >= l.latest {
		select {
		case l.enough <- struct{}{}:
		default:
		}
	}
}

// leave takes e out of the line, or says that a batch has it.
func (l *line) leave(e *entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.waiting, e)
	if at >= 0 {
		l.waiting = slices.Delete(l.waiting, at, at+1)
	}
	return at >= 0
}

// staff has what waits gathered. The lock is held.
func (l *line) staff() {
	if len(l.waiting) > 0 && !l.gathering && l.busy < l.config.Batch.Concurrency {
		l.gathering = true
		l.busy++
		go l.serve()
	}
}

// serve gathers and handles one batch.
func (l *line) serve() {
	defer func() { // also when a handler ends its goroutine
		l.mu.Lock()
		defer l.mu.Unlock()
		l.busy--
		l.staff()
	}()
	l.handle(l.gather())
}

// gather waits until as many wait as were in the batch before, because so many
// are likely to come, and takes them all.
func (l *line) gather() []*entry {
	patience := time.NewTimer(l.config.Batch.Wait)
	defer patience.Stop()
	for over := false; ; {
		if batch, ok := l.take(over); ok {
			return batch
		}
		select {
		case <-l.enough:
		case <-patience.C:
			over = true
		}
	}
}

func (l *line) take(anyNumber bool) ([]*entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) < l.latest && !anyNumber {
		return nil, false
	}
	n := min(len(l.waiting), l.config.Batch.Size)
	batch := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	l.latest = max(n, 1)
	l.gathering = false
	l.staff()
	return batch, true
}

// alone handles e in the goroutine that brought it.
func (l *line) alone(e *entry) error {
	select {
	case l.permits <- struct{}{}:
	case <-e.ctx.Done():
		return ended(e.ctx)
	}
	defer func() { <-l.permits }()
	l.handle([]*entry{e})
	return <-e.settled
}
