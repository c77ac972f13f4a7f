package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
)

// Orders that a writer obeys.
const (
	doPause     = "pause"
	doResume    = "resume"
	doWrite     = "write"     // write Count events of a Kind in one transaction
	doDeadlock  = "deadlock"  // run two transactions that deadlock
	doSerialize = "serialize" // run two transactions that cannot be serialized
)

// obey carries out the commands of the test until ctx ends.
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
