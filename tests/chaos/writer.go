package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/rabbit"
)

const (
	clerks     = 4  // goroutines that write, per writer
	keyCount   = 40 // ordering keys, which all writers share
	mostEvents = 8  // largest number of events in a transaction
)

// writer commits transactions that contain business rows and their events.
type writer struct {
	*actor

	db      *sql.DB
	box     *outbox.Outbox
	journal *journal
	seq     atomic.Int64
	gate    gate
	pause   atomic.Int64 // nanoseconds between two transactions of a clerk
}

func (a *actor) write(ctx context.Context, db *sql.DB) error {
	db.SetMaxOpenConns(clerks + 4)
	db.SetMaxIdleConns(clerks + 4)
	journal, err := openJournal(a.Journal)
	if err != nil {
		return err
	}
	box, err := outbox.New(outbox.Config{Check: rabbit.Check, MeterProvider: a.tally.meters})
	if err != nil {
		return err
	}
	w := &writer{actor: a, db: db, box: box, journal: journal}
	w.gate.close() // writers wait for the order to begin
	var clerk sync.WaitGroup
	for range clerks {
		clerk.Go(func() { w.work(ctx) })
	}
	w.obey(ctx)
	clerk.Wait()
	return nil
}

func (w *writer) work(ctx context.Context) {
	for w.gate.pass(ctx) {
		if err := w.transaction(ctx, plain, 1+rand.IntN(mostEvents), rand.IntN(20) == 0); err != nil && !errors.Is(err, errThinkAgain) {
			rest(ctx, 50*time.Millisecond) // the database may be down
		}
		if pause := w.pause.Load(); pause > 0 {
			rest(ctx, time.Duration(pause))
		}
	}
}

// errThinkAgain is the error with which a transaction is rolled back on purpose.
var errThinkAgain = errors.New("the business changed its mind")

// transaction writes the given number of events of a kind in one transaction, and records
// the result in the journal. If rollBack is true, it rolls the transaction
// back at the end.
func (w *writer) transaction(ctx context.Context, kind string, count int, rollBack bool) error {
	tx := w.name()
	if err := w.journal.note(tried, tx, count); err != nil {
		return err
	}
	if w.planted(plantOutbox) { // this event is committed although the transaction may still fail
		_ = w.box.InTx(ctx, w.db, func(_ *sql.Tx, events message.Publisher) error {
			return events.Publish(ledger, event{id: tx + ".early", kind: plain}.message())
		})
	}
	err := w.box.InTx(ctx, w.db, func(sqlTx *sql.Tx, events message.Publisher) error {
		if err := w.business(ctx, sqlTx, events, tx, kind, count); err != nil {
			return err
		}
		if rollBack {
			return errThinkAgain
		}
		return nil
	})
	return w.settled(tx, count, err)
}

func (w *writer) name() string { return fmt.Sprintf("%s-%d", w.Name, w.seq.Add(1)) }

func (w *writer) settled(tx string, count int, err error) error {
	state := byte(rolledBack)
	switch {
	case err == nil:
		state = committed
		w.tally.add("messages", int64(count))
	case errors.Is(err, outbox.ErrCommitUnknown):
		state = unknown
	}
	w.tally.add("transactions/"+string(state), 1)
	if errors.Is(err, outbox.ErrInvalid) {
		w.tally.add("refused", 1)
	}
	return errors.Join(err, w.journal.note(state, tx, count))
}

func (w *writer) business(ctx context.Context, tx *sql.Tx, events message.Publisher, name, kind string, count int) error {
	topic, key, number := ledger, "", int64(0)
	if kind == plain && rand.IntN(4) == 0 {
		topic = notices
	} else if kind == plain && rand.IntN(2) == 0 {
		key = fmt.Sprintf("key-%d", rand.IntN(keyCount))
		if err := tx.QueryRowContext(ctx, `
			INSERT INTO keys AS k VALUES ($1, $2) ON CONFLICT (ordering_key) DO UPDATE SET number = k.number + $2
			RETURNING number`, key, count).Scan(&number); err != nil {
			return err
		}
		number -= int64(count)
	}
	ids, numbers, messages := make([]string, count), make([]int64, count), make([]*message.Message, count)
	for i := range count {
		e := event{id: fmt.Sprintf("%s.%d", name, i), kind: kind, key: key}
		if key != "" {
			e.number = number + int64(i) + 1
		}
		ids[i], numbers[i], messages[i] = e.id, e.number, e.message()
	}
	if _, err := tx.ExecContext(ctx, `
		INSERT INTO business (message_id, number, tx, topic, kind, ordering_key)
		SELECT id, number, $3, $4, $5, $6 FROM unnest($1::text[], $2::bigint[]) AS e (id, number)`,
		pq.Array(ids), pq.Array(numbers), name, topic, kind, key); err != nil {
		return err
	}
	return events.Publish(topic, messages...)
}

// gate blocks goroutines while it is closed.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // nil while the gate is open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// pass waits until the gate is open. It returns false if ctx has ended.
func (g *gate) pass(ctx context.Context) bool {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened != nil {
		select {
		case <-opened:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Orders that a writer obeys.
const (
	doPause     = "pause"
	doResume    = "resume"    // pause For between two transactions
	doWrite     = "write"     // write Count events of a Kind in one transaction
	doDeadlock  = "deadlock"  // run two transactions that deadlock
	doSerialize = "serialize" // run two transactions that cannot be serialized
)

func (w *writer) obey(ctx context.Context) {
	for {
		select {
		case o := <-w.orders:
			w.carryOut(ctx, o)
		case <-ctx.Done():
			return
		}
	}
}

func (w *writer) carryOut(ctx context.Context, o order) {
	switch o.Do {
	case doPause:
		w.gate.close()
	case doResume:
		w.pause.Store(int64(o.For))
		w.gate.open()
	case doWrite:
		// Each attempt uses new ids, because the result of an earlier attempt
		// may be unknown.
		for ctx.Err() == nil {
			err := w.transaction(ctx, o.Kind, o.Count, false)
			if err == nil || errors.Is(err, outbox.ErrInvalid) {
				return
			}
			rest(ctx, 100*time.Millisecond)
		}
	case doDeadlock:
		w.pair(ctx, `SELECT 1`, [2]string{
			`UPDATE contended SET value = value + 1 WHERE id = 1`, `UPDATE contended SET value = value + 1 WHERE id = 2`,
		}, [2]string{
			`UPDATE contended SET value = value + 1 WHERE id = 2`, `UPDATE contended SET value = value + 1 WHERE id = 1`,
		})
	case doSerialize:
		w.pair(ctx, `SET TRANSACTION ISOLATION LEVEL SERIALIZABLE`, [2]string{
			`SELECT SUM(value) FROM contended WHERE id <= 5`, `SELECT SUM(value) FROM contended WHERE id > 5`,
		}, [2]string{
			`UPDATE contended SET value = value + 1 WHERE id = 6`, `UPDATE contended SET value = value + 1 WHERE id = 1`,
		})
	}
}

// pair writes events in two concurrent transactions. Each transaction executes a first
// statement, waits until the other transaction has done so, too, and then executes a
// second statement.
func (w *writer) pair(ctx context.Context, begin string, first, second [2]string) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var both, done sync.WaitGroup
	both.Add(2)
	for n := range 2 {
		done.Go(func() { w.half(ctx, begin, first[n], second[n], &both) })
	}
	done.Wait()
}

func (w *writer) half(ctx context.Context, begin, first, second string, both *sync.WaitGroup) {
	arrived := sync.OnceFunc(both.Done)
	defer arrived()
	tx, count := w.name(), 3
	if w.journal.note(tried, tx, count) != nil {
		return
	}
	err := w.box.InTx(ctx, w.db, func(sqlTx *sql.Tx, events message.Publisher) error {
		for _, query := range []string{begin, first} {
			if _, err := sqlTx.ExecContext(ctx, query); err != nil {
				return err
			}
		}
		arrived()
		both.Wait()
		if _, err := sqlTx.ExecContext(ctx, second); err != nil {
			return err
		}
		return w.business(ctx, sqlTx, events, tx, plain, count)
	})
	_ = w.settled(tx, count, err)
}
