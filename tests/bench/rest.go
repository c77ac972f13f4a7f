package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	percent   = "%"
	perMinute = "ids/min"
)

// rests measures the processor time and the transaction ids that an idle forwarder uses.
func (b *bench) rests(ctx context.Context) ([]row, error) {
	cpu := series{id: "rest-cpu", what: "an idle forwarder and its PostgreSQL sessions: share of a core", unit: percent}
	ids := series{id: "rest-ids", what: "transaction ids that the server assigns meanwhile", unit: perMinute}
	if runtime.GOOS != "linux" {
		fmt.Fprintln(b.progress, "processor times are read from /proc, which only Linux has: group rest is left out")
		return nil, nil
	}
	err := b.turns(ctx, measurement{[]*series{&cpu, &ids}, b.rest})
	if err != nil {
		return nil, err
	}
	const leases = 13 // one renewal every 5 seconds of a minute, and one more at the edge
	return []row{cpu.atMost(0.5), ids.atMost(leases)}, nil
}

func (b *bench) rest(ctx context.Context) (_ []float64, err error) {
	s, err := b.newScene(ctx, b.kinds[0])
	if err != nil {
		return nil, err
	}
	defer closing(s, &err)
	f, err := s.forward(0)
	if err != nil {
		return nil, err
	}
	defer closing(f, &err)
	f.start(ctx)
	<-f.fwd.Running()
	if err := wait(ctx, time.Now().Add(b.resting/2)); err != nil { // the pause between two polls grows first
		return nil, err
	}
	before, err := s.spent(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := wait(ctx, start.Add(b.resting)); err != nil {
		return nil, err
	}
	after, err := s.spent(ctx)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	return []float64{
		100 * (after.cpu - before.cpu).Seconds() / took.Seconds(),
		float64(after.nextID-before.nextID) / took.Minutes(),
	}, nil
}

// spent contains the processor time that was used so far, and the next transaction id of
// the server.
type spent struct {
	cpu    time.Duration // of this process and the sessions of its database
	nextID int64         // the next transaction id
}

func (s *scene) spent(ctx context.Context) (spent, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return spent{}, err
	}
	got := spent{cpu: time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}
	err := s.db.QueryRowContext(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&got.nextID)
	if err != nil {
		return spent{}, err
	}
	rows, err := s.db.QueryContext(ctx, `SELECT pid FROM pg_stat_activity WHERE datname = current_database()`)
	if err != nil {
		return spent{}, err
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		if err := rows.Scan(&pid); err != nil {
			return spent{}, err
		}
		cpu, err := processTime(pid)
		if err != nil {
			return spent{}, fmt.Errorf("PostgreSQL must run on this machine: %w", err)
		}
		got.cpu += cpu
	}
	return got, rows.Err()
}

// processTime returns the processor time that a process has used.
func processTime(pid int) (time.Duration, error) {
	const (
		tick  = 10 * time.Millisecond // Linux reports times in hundredths of a second
		utime = 11                    // index of the first field to add, after the name of the process, which may contain spaces
	)
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var sum time.Duration
	for _, field := range fields[utime : utime+2] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * tick
	}
	return sum, nil
}

// idles measures whether an idle transaction in another database of the server stops
// delivery.
func (b *bench) idles(ctx context.Context) ([]row, error) {
	kind := b.kinds[0]
	var (
		none  = series{id: "idle-none", what: "forwarder, " + kind, unit: perSecond}
		ours  = series{id: "idle-open", what: "the same, an idle write transaction open in another database", unit: perSecond}
		stock = series{id: "idle-stock", what: fmt.Sprintf("stock forwarder likewise, within %v", b.stopped), unit: perSecond}
	)
	err := b.turns(
		ctx,
		single(&none, func(ctx context.Context) (float64, error) { return b.drainFilled(ctx, kind, b.messages, 0) }),
		single(&ours, func(ctx context.Context) (value float64, err error) {
			tx, err := b.writeTransaction(ctx)
			if err != nil {
				return 0, err
			}
			defer closing(tx, &err)
			return b.drainFilled(ctx, kind, b.messages, 0)
		}),
		single(&stock, func(ctx context.Context) (float64, error) { return b.stockStopped(ctx, kind) }),
	)
	if err != nil {
		return nil, err
	}
	return []row{none.row(), ours.against(none, 0), stock.row()}, nil
}

// openTransaction is an idle transaction that has a transaction id, like a transaction
// that has written.
type openTransaction struct {
	db *sql.DB
	tx *sql.Tx
}

func (b *bench) writeTransaction(ctx context.Context) (*openTransaction, error) {
	db, err := open(b.pgDSN)
	if err != nil {
		return nil, err
	}
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if _, err := tx.ExecContext(ctx, `SELECT txid_current()`); err != nil { // assigns a transaction id, as a write does
		return nil, errors.Join(err, tx.Rollback(), db.Close())
	}
	return &openTransaction{db, tx}, nil
}

// Close rolls the transaction back and closes its pool. It may be called more than
// once.
func (t *openTransaction) Close() error {
	err := t.tx.Rollback()
	if errors.Is(err, sql.ErrTxDone) {
		err = nil
	}
	return errors.Join(err, t.db.Close())
}

// stockStopped measures how many messages per second Watermill's forwarder delivers
// while a transaction is open. It also checks that the forwarder continues after the
// transaction has ended.
func (b *bench) stockStopped(ctx context.Context, kind string) (_ float64, err error) {
	const few = 100
	tx, err := b.writeTransaction(ctx)
	if err != nil {
		return 0, err
	}
	defer closing(tx, &err)
	s, err := b.newScene(ctx, kind)
	if err != nil {
		return 0, err
	}
	defer closing(s, &err)
	if err := s.fillStock(ctx, few); err != nil {
		return 0, err
	}
	f, err := s.forwardStock(few)
	if err != nil {
		return 0, err
	}
	defer closing(f, &err)
	f.start(ctx)
	if _, err := f.await(ctx, b.stopped); err != nil {
		return 0, err
	}
	delivered := int(f.publisher.confirmed.Load())
	if err := tx.Close(); err != nil {
		return 0, err
	}
	if reached, err := f.await(ctx, stockPatience); err != nil {
		return 0, err
	} else if !reached {
		return 0, fmt.Errorf("nor did it deliver within %v after the transaction had ended", stockPatience)
	}
	return rate(delivered, b.stopped), nil
}
