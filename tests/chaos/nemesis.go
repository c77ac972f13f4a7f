package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
)

// nemesis executes a plan of faults.
type nemesis struct {
	*world

	out    io.Writer
	began  time.Time
	report *report
	mu     sync.Mutex // guards report, out and last
	last   int64      // serial number of the last written event that is known
}

// strike injects the faults of a step at the same time. It returns when all of them are
// undone.
func (n *nemesis) strike(ctx context.Context, s step) {
	var faults sync.WaitGroup
	for i, f := range s.faults {
		faults.Go(func() {
			random := rand.New(rand.NewPCG(s.seeds[i], 1))
			// A fault begins at a random moment, but only while messages are
			// unfinished.
			rest(ctx, time.Duration(random.Int64N(int64(500*time.Millisecond))))
			waiting := n.busy(ctx)
			from := n.serial(ctx)
			if f.writes {
				n.load.need(1)
				defer n.load.need(-1)
			}
			proof, err := f.strike(ctx, &strike{world: n.world, Rand: random})
			n.note(f, waiting, proof, err)
			n.span(f, from, n.serial(ctx))
		})
	}
	faults.Wait()
}

// busy waits up to two seconds until the backlog is above zero. It returns the backlog.
func (n *nemesis) busy(ctx context.Context) (waiting int64) {
	for range 20 {
		if waiting = n.load.waiting(); waiting > 0 {
			break
		}
		rest(ctx, 100*time.Millisecond)
	}
	return waiting
}

// serial returns the highest serial number of an event. While the database is down, it returns the
// last known number.
func (n *nemesis) serial(ctx context.Context) int64 {
	last := n.number(ctx, `SELECT COALESCE(MAX(serial), 0) FROM business`)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = max(n.last, last)
	return n.last
}

// span records the events that were written while a fault was active.
func (n *nemesis) span(f fault, from, to int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	row := n.report.row(f.name)
	row.spans = append(row.spans, span{from, to})
}

// note records the result of an injection. If the injection failed, the fault counts as a fault
// without an effect. If a failed injection has left damage, settle finds the damage
// later, because some messages are never finished.
func (n *nemesis) note(f fault, waiting int64, proof string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	row := n.report.row(f.name)
	row.Injected++
	row.InFlight = max(row.InFlight, waiting)
	if err == nil {
		row.Bitten++
	} else {
		row.Unavailable = errors.Is(err, errUnavailable)
		proof = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	row.Proof = proof
	fmt.Fprintf(n.out, "%7s  %-24s %s\n", time.Since(n.began).Round(time.Second), f.name, proof)
}
