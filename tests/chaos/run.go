package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// run runs the whole test, and writes its progress to out. If it returns an
// error, it also returns the report with the results so far.
func run(ctx context.Context, o options, out io.Writer) (r *report, err error) {
	r = newReport(o)
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%7s  %s\n", time.Since(began).Round(time.Second), fmt.Sprintf(format, args...))
	}
	say("seed %d, %d kinds of fault", o.seed, len(o.faults))
	started := r.began("the start of servers and processes")
	w, err := newWorld(ctx, o)
	defer func() { err = errors.Join(err, w.Close()) }()
	if err != nil {
		return r, err
	}
	w.old = o.old
	if w.program = o.program; w.program == "" {
		if w.program, err = os.Executable(); err != nil {
			return r, err
		}
	}
	if err := w.begin(o.plant); err != nil {
		return r, err
	}
	if err := w.attended(ctx); err != nil {
		return r, err
	}
	before, err := w.rested(ctx)
	if err != nil {
		return r, err
	}
	started()
	say("all processes are there")

	if o.plot != "" {
		if r.servers, err = w.versions(ctx); err != nil {
			return r, err
		}
		watching, stop := context.WithCancel(ctx)
		var watch sync.WaitGroup
		watch.Go(func() { r.Samples = w.watch(watching, began) })
		defer watch.Wait()
		defer stop()
	}
	w.load.most, w.load.pace = o.waiting, o.pace
	pressing, stop := context.WithCancel(ctx)
	defer stop()
	go w.load.run(pressing)
	n := &nemesis{world: w, out: out, began: began, report: r}
	struck := r.began("the faults")
	if err := n.all(ctx, o); err != nil {
		return r, err
	}
	struck()
	w.load.hold(1)
	settled := r.began("the wait for the last messages")
	if err := w.settle(ctx, say); err != nil {
		r.wrongf("%v", err)
	}
	settled()
	stop()
	say("counting")
	counted := r.began("the count and the end of the processes")
	if err := w.audit(ctx, r); err != nil {
		return r, err
	}
	after, err := w.rested(ctx)
	if err != nil {
		return r, err
	}
	after.compare(before, r)
	for _, m := range w.members {
		for _, odd := range m.oddities() {
			r.wrongf("%s", odd)
		}
	}
	if err := w.stop(); err != nil {
		r.wrongf("%v", err)
	}
	counted()
	r.judge()
	return r, nil
}

// all executes the plan. It ends when no kind of fault needs another injection and
// o.messages messages are committed, but not before o.duration has passed.
func (n *nemesis) all(ctx context.Context, o options) error {
	for s := range plan(o.seed, o.faults) {
		long := time.Since(n.began) >= o.duration
		if long && !n.wants(s.faults) {
			if n.wants(o.faults) {
				continue
			}
			if n.number(ctx, `SELECT COUNT(*) FROM business`) >= int64(o.messages) {
				break
			}
		}
		n.strike(ctx, s)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// chances is how many times more than requested a kind of fault may be injected. More
// injections are needed if some had no effect: on a busy machine an effect may come too
// late.
const chances = 2

// wants reports whether one of the kinds needs another injection. A kind needs one if it
// has had fewer effective injections than requested, and has not used up its chances.
func (n *nemesis) wants(faults []fault) bool {
	return slices.ContainsFunc(faults, func(f fault) bool {
		row := n.report.row(f.name)
		return row.Bitten < n.report.Bites && row.Injected < n.report.Bites+chances && !row.Unavailable
	})
}

// settle waits until all messages are finished. It gives up if the backlog has not shrunk
// for longer than patience.
func (w *world) settle(ctx context.Context, say func(string, ...any)) error {
	say("waiting until it is quiet")
	least, since := int64(1<<62), time.Now()
	for !w.idle(ctx) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := w.backlog(ctx)
		if err == nil && n < least {
			least, since = n, time.Now()
		}
		if time.Since(since) > patience {
			return fmt.Errorf("it does not become quiet: %d messages are under way", least)
		}
		rest(ctx, 200*time.Millisecond)
	}
	return nil
}

// step is a list of one or two faults that are injected at the same time.
type step struct {
	faults []fault
	seeds  []uint64 // seed of each fault
}

// plan returns an endless plan. In the first round every fault is injected alone. Later
// rounds combine two faults where that is possible. The same seed and faults give the
// same plan.
func plan(seed uint64, faults []fault) iter.Seq[step] {
	return func(yield func(step) bool) {
		random := rand.New(rand.NewPCG(seed, 0))
		for round := 0; ; round++ {
			left := make([]fault, len(faults))
			for i, n := range random.Perm(len(faults)) {
				left[i] = faults[n]
			}
			for len(left) > 0 {
				s := step{faults: left[:1:1]}
				left = left[1:]
				if round > 0 {
					s, left = s.pair(left)
				}
				for range s.faults {
					s.seeds = append(s.seeds, random.Uint64())
				}
				if !yield(s) {
					return
				}
			}
		}
	}
}

// pair adds a second fault to the step: the first of the remaining faults that can be
// combined with the step's fault. It returns the step, and the faults that still
// remain.
func (s step) pair(left []fault) (step, []fault) {
	for i, other := range left {
		if first := s.faults[0]; first.alone || other.alone || first.on == other.on {
			continue
		}
		s.faults = append(s.faults, other)
		rest := append([]fault{}, left[:i]...)
		return s, append(rest, left[i+1:]...)
	}
	return s, left
}

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
			began := time.Now()
			strike := &strike{world: n.world, Rand: random}
			proof, err := f.strike(ctx, strike)
			n.note(f, strike, waiting, time.Since(began), proof, err)
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

func (n *nemesis) serial(ctx context.Context) int64 {
	last := n.number(ctx, `SELECT COALESCE(MAX(serial), 0) FROM business`)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = max(n.last, last)
	return n.last
}

// span records which events were written while the fault was active. from
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
func (n *nemesis) note(f fault, s *strike, waiting int64, took time.Duration, proof string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	row := n.report.row(f.name)
	row.Injected++
	row.InFlight = max(row.InFlight, waiting)
	row.Took += took
	row.During, row.After = row.During.longer(s.during), row.After.longer(s.after)
	if err == nil {
		row.Bitten++
	} else {
		row.Missed += took
		row.Unavailable = errors.Is(err, errUnavailable)
		proof = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	row.Proof = proof
	fmt.Fprintf(n.out, "%7s  %-24s %s\n", time.Since(n.began).Round(time.Second), f.name, proof)
}
