package parkedrows

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
)

// seePauses is how often a process reads the paused consumers. A pause must take effect within a
// second.
const seePauses = 500 * time.Millisecond

// readPausesTimeout limits one query. The first query of a process delays Subscribe.
const readPausesTimeout = 5 * time.Second

// Intake says whether a subscription may start to handle messages.
type Intake int

const (
	// IntakeUnknown means that the paused consumers have not been read yet. No message may be
	// handled.
	IntakeUnknown Intake = iota

	IntakeOpen

	IntakePaused

	// IntakeProbe means that a breaker lets the subscription start one message.
	IntakeProbe
)

// Starts reports whether a message may start.
func (i Intake) Starts() bool { return i == IntakeOpen || i == IntakeProbe }

// Source is where a message comes from. The values can be added.
type Source int

const (
	FromTransport Source = 1 << iota
	FromRows

	FromBoth = FromTransport | FromRows
)

// PauseWatch tells one subscription whether its consumer is paused.
type PauseWatch struct {
	of    *pauseReader
	store *Store
	name  usedName

	mu      sync.Mutex
	known   bool
	pause   *pause // the row of the consumer, or nil
	limit   Limit  // that an operator has set
	breaks  bool   // the subscription has a breaker
	breaker Breaker
	changed chan struct{}
}

// pause is a row of the paused consumers. It never changes.
type pause struct {
	breaker bool // a breaker has paused the consumer, no operator
	overdue bool // nobody has probed for so long that no instance has a breaker any more
	Break
}

// Break is the row of a consumer whose breaker is open.
type Break struct {
	Due    time.Time // of the next probe, by the clock of this process
	Probes int       // failed probes
	Prober string    // owner of the subscription that probes, or has probed last
	Group  string    // failure group of the messages that have opened the breaker
}

// Breaker is what the breaker of a subscription has decided.
type Breaker struct {
	Held  bool   // nothing may start, also without a row
	Probe Source // one message may start
	Free  bool   // messages may start in spite of the breaker's row, which is about to be deleted
}

// Intake returns the current state for messages from a source, and a channel that is closed when
// a state changes.
func (w *PauseWatch) Intake(of Source) (now Intake, changed <-chan struct{}) {
	if w == nil {
		return IntakeOpen, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.intake(of), w.changed
}

// abandoned is how long a breaker's row can be due without a probe. After that, no instance has a
// breaker any more, so nobody would delete the row.
const abandoned = time.Minute

func (w *PauseWatch) intake(of Source) Intake {
	switch {
	case !w.known:
		return IntakeUnknown
	case w.pause != nil && !w.pause.breaker:
		return IntakePaused
	case w.breaker.Free, w.pause == nil && !w.breaker.Held:
		return IntakeOpen
	case w.pause != nil && !w.breaks && w.pause.overdue:
		return IntakeOpen
	case w.breaker.Probe&of != 0:
		return IntakeProbe
	}
	return IntakePaused
}

// Start is called before a message is passed to a handler. It returns false if the message must
// wait. During a probe it returns true once, together with probe.
func (w *PauseWatch) Start(from Source) (probe, ok bool) {
	if w == nil {
		return false, true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.intake(from) {
	case IntakeOpen:
		return false, true
	case IntakeProbe:
		w.breaker.Probe = 0
		w.change()
		return true, true
	default:
		return false, false
	}
}

// SetBreaker is called by the breaker of the subscription, first before the first message.
func (w *PauseWatch) SetBreaker(b Breaker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.breaks || w.breaker != b {
		w.breaks, w.breaker = true, b
		w.change()
	}
}

// Row returns the row of the consumer's breaker, or nil. operator reports whether an operator has
// paused the consumer. changed is closed when the row changes, but not if only Due does.
func (w *PauseWatch) Row() (row *Break, operator bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pause == nil || w.pause.breaker {
		if w.pause != nil {
			row = &w.pause.Break
		}
		return row, false, w.changed
	}
	return nil, true, w.changed
}

// Limit returns the limit that an operator has set for the consumer, if any, and a channel that is
// closed when it changes.
func (w *PauseWatch) Limit() (limit Limit, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.limit, w.changed
}

// Refresh reads the rows now. A query that has begun earlier does not replace its result.
func (w *PauseWatch) Refresh(ctx context.Context) error {
	w.of.reading.Lock()
	defer w.of.reading.Unlock()
	poll := pausePoll{store: w.store, reader: w.store.dialect.Reader(w.store.db)}
	all, err := poll.query(ctx)
	if err != nil {
		return fmt.Errorf("read the paused consumers: %w", err)
	}
	w.of.set(all)
	return nil
}

// Open reports whether the subscription may start to handle messages.
func (w *PauseWatch) Open() bool {
	now, _ := w.Intake(FromBoth)
	return now == IntakeOpen
}

// The caller of change has locked w.mu.
func (w *PauseWatch) change() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *PauseWatch) set(known bool, now settings) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, differs := w.intake(0), !same(w.pause, now.pause) || w.limit != now.limit
	w.known, w.pause, w.limit = known, now.pause, now.limit
	if differs || before != w.intake(0) {
		w.change()
	}
}

func same(a, b *pause) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.breaker == b.breaker && a.Probes == b.Probes && a.Prober == b.Prober && a.Group == b.Group
}

// settings are what the tables say about the consumer of a subscription.
type settings struct {
	pause *pause // nil if it is not paused
	limit Limit
}

// pauseReader reads the paused consumers once for all subscriptions of this process to the same
// table.
type pauseReader struct {
	starting sync.Mutex // serializes the methods WatchPauses and Stop
	reading  sync.Mutex // serializes queries, so that an older result does not replace a newer one

	mu      sync.Mutex
	watches map[*PauseWatch]struct{}
	known   bool
	all     map[usedName]settings

	end func() // ends the goroutine that reads
}

// WatchPauses returns a PauseWatch for a subscription. WatchPauses first reads the paused
// consumers, so that a subscription knows from the start that its consumer is paused.
func (s *Store) WatchPauses(ctx context.Context, consumer, topic string, logger watermill.LoggerAdapter) *PauseWatch {
	r := &s.process.pauses
	r.starting.Lock()
	defer r.starting.Unlock()
	w := &PauseWatch{
		of: r, store: s, name: usedName{Clean(consumer, MaxName), Clean(topic, MaxName)}, changed: make(chan struct{}),
	}
	first, known := r.add(w)
	poll := pausePoll{store: s, reader: s.dialect.Reader(s.db), logger: logger}
	if first || known { // otherwise the database cannot be read, and the subscriptions would wait for it one after another
		poll.read(ctx, r)
	}
	if !first {
		return w
	}
	reading, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { poll.run(reading, r) })
	r.end = func() {
		cancel()
		running.Wait()
	}
	return w
}

// Stop ends the use of w.
func (w *PauseWatch) Stop() {
	w.of.starting.Lock()
	defer w.of.starting.Unlock()
	if w.of.remove(w) {
		w.of.end()
	}
}

func (r *pauseReader) add(w *PauseWatch) (first, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.watches) == 0 {
		r.watches, r.known, r.all = map[*PauseWatch]struct{}{}, false, nil
	}
	r.watches[w] = struct{}{}
	w.set(r.known, r.all[w.name])
	return len(r.watches) == 1, r.known
}

func (r *pauseReader) remove(w *PauseWatch) (last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.watches, w)
	return len(r.watches) == 0
}

func (r *pauseReader) set(all map[usedName]settings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.all = true, all
	for w := range r.watches {
		w.set(true, all[w.name])
	}
}

type pausePoll struct {
	store   *Store
	reader  *dialect.Reader
	logger  watermill.LoggerAdapter
	failing bool
}

func (p *pausePoll) run(ctx context.Context, r *pauseReader) {
	tick := time.NewTicker(seePauses)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.read(ctx, r)
		case <-ctx.Done():
			return
		}
	}
}

// read tells all watches which consumers are paused. During an outage of the database, a paused
// consumer stays paused.
func (p *pausePoll) read(ctx context.Context, r *pauseReader) {
	r.reading.Lock()
	defer r.reading.Unlock()
	limited, cancel := context.WithTimeout(ctx, readPausesTimeout)
	defer cancel()
	all, err := p.query(limited)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		if !p.failing {
			p.failing = true
			p.logger.Error("Paused consumers cannot be read, retrying", err, nil)
		}
		return
	case p.failing:
		p.failing = false
		p.logger.Info("Paused consumers are read again", nil)
	}
	failpoint.Hit("parked/pauses-read")
	r.set(all)
}

func (p *pausePoll) query(ctx context.Context) (all map[usedName]settings, err error) {
	asked := time.Now()
	collect := func(rows *sql.Rows) error {
		all = map[usedName]settings{}
		for rows.Next() {
			var (
				name  usedName
				until sql.NullInt64
				row   pause
				limit Limit
			)
			err := rows.Scan(&name.consumer, &name.topic, &until, &row.Probes, &row.Prober, &row.Group, &limit.PerSecond, &limit.Burst)
			if err != nil {
				return err
			}
			of := all[name]
			if limit.PerSecond > 0 {
				of.limit = limit
			} else {
				due := Duration(until.Int64)
				row.breaker, row.overdue, row.Due = until.Valid, due < -abandoned, asked.Add(due)
				of.pause = &row
			}
			all[name] = of
		}
		return nil
	}
	if p.reader.Usable() {
		if err := p.reader.Read(ctx, p.store.sql.paused, nil, collect); err == nil {
			return all, nil
		}
	}
	// The cause of an error may exist only outside of a transaction.
	err = p.store.dialect.Read(ctx, p.store.db, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, p.store.sql.paused.Query())
		if err != nil {
			return err
		}
		defer rows.Close()
		if err := collect(rows); err != nil {
			return err
		}
		return rows.Err()
	})
	return all, err
}
