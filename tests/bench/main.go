// Command bench measures this module, Watermill's own components ("stock") and plain use
// of the servers ("raw"), side by side and in one run. It prints one table. Compare its
// ratios: the absolute figures depend on the machine.
//
// PG_DSN and AMQP_URL name the servers. `make bench` sets them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

const (
	statusUsage       = 2
	statusInterrupted = 130
)

func main() { os.Exit(command(os.Args[1:])) }

func command(args []string) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second Ctrl-C ends the process without cleanup. A signal within two seconds of the
	// first one does not count, because one Ctrl-C may arrive twice: from the terminal and
	// from the command that started this process.
	context.AfterFunc(ctx, func() { time.AfterFunc(2*time.Second, stop) })

	err := start(ctx, args)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "bench: interrupted:", err)
		return statusInterrupted
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	if errors.Is(err, errUsage) {
		return statusUsage
	}
	return 1
}

func start(ctx context.Context, args []string) error {
	if os.Getenv(drainerVariable) != "" {
		return drainer(ctx, os.Stdout)
	}
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		help(os.Stdout)
		return nil
	}
	if err != nil {
		return err
	}
	b := &bench{options: o, progress: os.Stderr}
	return b.run(ctx, os.Stdout)
}

// bench contains the options of the measurements, and the writer of their progress.
type bench struct {
	options

	progress io.Writer
}

func (b *bench) compare(out io.Writer, rows []row) error {
	if b.before == "" {
		return nil
	}
	baseline, err := readBaseline(b.before)
	if err != nil {
		return err
	}
	all, worse := compare(rows, baseline)
	printComparison(out, b.before, all, worse)
	return nil
}

// run measures the groups one after the other, and prints their rows. If a group fails,
// run prints the rows of the groups before it, and returns the error.
func (b *bench) run(ctx context.Context, out io.Writer) error {
	about, err := facts(ctx, b.options)
	if err != nil {
		return err
	}
	var rows []row
	for _, g := range b.groups {
		var more []row
		if more, err = g.measure(b, ctx); err != nil {
			err = fmt.Errorf("%s: %w", g.name, err)
			break
		}
		rows = append(rows, more...)
	}
	if len(rows) > 0 {
		about.print(out)
		printTable(out, rows)
		if failed := b.compare(out, rows); failed != nil {
			err = errors.Join(err, failed)
		}
	}
	if err == nil && b.out != "" {
		err = writeJSON(b.out, rows)
	}
	return err
}

// group is a list of measurements that are compared. They run alternately, so that a
// disturbance of the machine affects all of them.
type group struct {
	name    string
	about   string
	measure func(b *bench, ctx context.Context) ([]row, error)
}

func groups() []group {
	return []group{
		{"drain", "a backlog is forwarded: raw protocol, rabbit.Publisher alone, stock forwarder, ours; each kind of queue", (*bench).drain},
		{"backlog", "forwarding with a million waiting, against a few thousand", (*bench).backlogs},
		{"snapshot", "forwarding while another session holds a snapshot open and dead rows pile up", (*bench).snapshots},
		{"idle", "forwarding while another session has an idle write transaction open, beside the stock forwarder", (*bench).idles},
		{"keys", "forwarding with ordering keys: a thousand, and one hot one", (*bench).keys},
		{"producer", "business transactions with an event, against the same without", (*bench).producers},
		{"rest", "processor time and transaction ids of a forwarder that has nothing to do", (*bench).rests},
		{"batch", "consuming one message a transaction, and in batches", (*bench).batches},
		{"latency", "from commit to consumer, with a hint and without", (*bench).latencies},
		{"consumer", "consuming: a bare transaction, a table of ids by hand, stock, ours; pgbench beside it", (*bench).consumers},
		{"duplicates", "messages that were handled before, against new ones", (*bench).duplicates},
		{"poison", "consuming with one message in a hundred that always fails, against none", (*bench).poisons},
		{"inbox", "consuming with ten million ids in the inbox, against none", (*bench).inboxes},
		{"retention", "forgetting a day of five million ids while messages are claimed", (*bench).retentions},
		{"reconcile", "finding the ids that differ between a sent log and an inbox in another database", (*bench).reconciliations},
		{"look", "lists, groups and status with very many rows, and what a forwarder and a consumer notice", (*bench).looks},
		{"durable", "a consumer that stores its messages first, against one that handles them directly", (*bench).durables},
		{"modes", "a consumer that keeps the order of keys, or compares versions, against one that does neither", (*bench).modes},
		{"fairness", "a few messages of one tenant while another has a million waiting, against none", (*bench).fairness},
		{"outbox-fair", "a few messages of one tenant in the outbox while another has a million there, against none", (*bench).outboxFairness},
		{"console", "the overview of the console with ten million ids: its time, and forwarding and consuming meanwhile", (*bench).consoles},
		{"memory", "resident memory of a process that drains a million", (*bench).memories},
	}
}

// measurement is run several times. Each run adds one value to each series in the field
// into.
type measurement struct {
	into    []*series
	measure func(ctx context.Context) ([]float64, error)
}

func single(into *series, measure func(ctx context.Context) (float64, error)) measurement {
	return measurement{[]*series{into}, func(ctx context.Context) ([]float64, error) {
		value, err := measure(ctx)
		return []float64{value}, err
	}}
}

// turns runs every measurement once, then every measurement once more, and so on for
// b.runs rounds. So a temporary disturbance of the machine affects all measurements.
func (b *bench) turns(ctx context.Context, measurements ...measurement) error {
	found := findServers(b.pgDSN, b.amqpURL)
	for n := range b.runs {
		for _, m := range measurements {
			runtime.GC() // the garbage of the previous measurement must not slow down this one
			w := &costMeter{serverProcesses: found}
			values, err := m.measure(context.WithValue(ctx, costKey{}, w))
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", m.into[0].what, err)
			}
			if c, ok := w.cost(); ok && len(m.into) == 1 {
				m.into[0].costs = append(m.into[0].costs, c)
			}
			for i, value := range values {
				s := m.into[i]
				s.values = append(s.values, value)
				fmt.Fprintf(b.progress, "run %d of %d: %-70s %8s %s\n", n+1, b.runs, s.what, number(value), s.unit)
			}
		}
	}
	return nil
}
