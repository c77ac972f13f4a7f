package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// run runs the whole test, and writes its progress to the parameter out. If it returns an
// error, it also returns the report with the results so far.
func run(ctx context.Context, o options, out io.Writer) (r *report, err error) {
	r = newReport(o)
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%7s  %s\n", time.Since(began).Round(time.Second), fmt.Sprintf(format, args...))
	}
	say("seed %d, %d kinds of fault", o.seed, len(o.faults))
	w, err := newWorld(ctx)
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
	say("all processes are there")

	w.load.most = o.waiting
	pressing, stop := context.WithCancel(ctx)
	defer stop()
	go w.load.run(pressing)
	n := &nemesis{world: w, out: out, began: began, report: r}
	if err := n.all(ctx, o); err != nil {
		return r, err
	}
	w.load.hold(1)
	if err := w.settle(ctx, say); err != nil {
		r.wrongf("%v", err)
	}
	stop()
	say("counting")
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
