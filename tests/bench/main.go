// Command bench measures this module, Watermill's own components ("stock") and plain use
// of the servers ("raw"), side by side and in one run. It prints one table. Compare its
// ratios: the absolute figures depend on the machine.
//
// PG_DSN and AMQP_URL name the servers. `make bench` sets them.
//
// To read the code, start with options.go, groups.go, turns.go (each measurement in
// turns with the others), row.go and table.go. scene.go, database.go and queue.go make
// the database and the queue of a measurement. forwarding.go and consuming.go run this
// module. stock.go runs Watermill's forwarder, and raw.go publishes without either of
// them. Each group has a file, such as drain.go or latency.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
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

// compare prints which ratios are worse than in the baseline.
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
