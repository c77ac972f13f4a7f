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

// strike injects the faults of a step at the same time. It returns when all these faults
// are undone.
func (n *nemesis) strike(ctx context.Context, s step) {
	var faults sync.WaitGroup
	for i, f := range s.faults {
		faults.Go(func() {
			random := rand.New(rand.NewPCG(s.seeds[i], 1))
			// A fault begins at a random moment. To hit messages, it then waits for up to two
			// seconds until some are unfinished.
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

// busy returns the backlog as soon as it is above zero. After two seconds, it returns
// zero.
func (n *nemesis) busy(ctx context.Context) (waiting int64) {
	for range 20 {
		if waiting = n.load.waiting(); waiting > 0 {
			break
		}
		rest(ctx, 100*time.Millisecond)
	}
	return waiting
}

// serial returns the highest serial number of an event. If the database is down, it
// returns the last number that it has read.
func (n *nemesis) serial(ctx context.Context) int64 {
	last := n.number(ctx, `SELECT COALESCE(MAX(serial), 0) FROM business`)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = max(n.last, last)
	return n.last
}

// span records which events were written while the fault was active. The parameters from
// and to are serial numbers of events.
func (n *nemesis) span(f fault, from, to int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	row := n.report.row(f.name)
	row.spans = append(row.spans, span{from, to})
}

// note records the result of an injection. If the injection returned an error, it counts
// as an injection without an effect. It may still have damaged messages. The method
// settle finds such damage later, because these messages are never finished.
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
