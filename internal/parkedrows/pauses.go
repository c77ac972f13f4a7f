package parkedrows

import (
	"context"
	"database/sql"
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
)

// PauseWatch tells one subscription whether its consumer is paused.
type PauseWatch struct {
	of    *pauseReader
	store *Store
	name  usedName

	mu      sync.Mutex
	intake  Intake
	changed chan struct{}
}

// Intake returns the current state, and a channel that is closed when it changes.
func (w *PauseWatch) Intake() (now Intake, changed <-chan struct{}) {
	if w == nil {
		return IntakeOpen, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.intake, w.changed
}

// Open reports whether the subscription may start to handle messages.
func (w *PauseWatch) Open() bool {
	now, _ := w.Intake()
	return now == IntakeOpen
}

func (w *PauseWatch) set(now Intake) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.intake == now {
		return
	}
	w.intake = now
	close(w.changed)
	w.changed = make(chan struct{})
}

// pauseReader reads the paused consumers once for all subscriptions of this process to the same
// table.
type pauseReader struct {
	starting sync.Mutex // serializes the methods WatchPauses and Stop
	reading  sync.Mutex // serializes queries, so that an older result does not replace a newer one

	mu      sync.Mutex
	watches map[*PauseWatch]struct{}
	known   bool
	paused  map[usedName]bool

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
		r.watches, r.known, r.paused = map[*PauseWatch]struct{}{}, false, nil
	}
	r.watches[w] = struct{}{}
	w.set(r.intake(w.name))
	return len(r.watches) == 1, r.known
}

func (r *pauseReader) remove(w *PauseWatch) (last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.watches, w)
	return len(r.watches) == 0
}

func (r *pauseReader) set(paused map[usedName]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known, r.paused = true, paused
	for w := range r.watches {
		w.set(r.intake(w.name))
	}
}

func (r *pauseReader) intake(name usedName) Intake {
	switch {
	case !r.known:
		return IntakeUnknown
	case r.paused[name]:
		return IntakePaused
	}
	return IntakeOpen
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
	paused, err := p.query(limited)
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
	r.set(paused)
}

func (p *pausePoll) query(ctx context.Context) (paused map[usedName]bool, err error) {
	collect := func(rows *sql.Rows) error {
		paused = map[usedName]bool{}
		for rows.Next() {
			var name usedName
			if err := rows.Scan(&name.consumer, &name.topic); err != nil {
				return err
			}
			paused[name] = true
		}
		return nil
	}
	if p.reader.Usable() {
		if err := p.reader.Read(ctx, p.store.sql.paused, nil, collect); err == nil {
			return paused, nil
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
	return paused, err
}
