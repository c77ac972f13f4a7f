// Command peers compares this module with River and with Watermill's own components
// ("stock Watermill"). It measures how much an event or a job slows down a transaction,
// how fast a backlog of events or jobs is handled, and how long an event or a job takes
// from its commit to its worker. All systems use the same servers, run in turns, and
// write the same business rows.
//
// PG_DSN and AMQP_URL name the servers. `make peers` sets them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	if err := command(); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func command() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx)
}

// options are the sizes of the measurements.
type options struct {
	messages int           // number of messages of a backlog; stock Watermill gets a tenth of them
	lasting  time.Duration // duration of each measurement of producers and of latency
	runs     int
}

func run(ctx context.Context) error {
	var o options
	flag.IntVar(&o.messages, "messages", 20_000, "`number` of events or jobs of a backlog, at least 1000; a tenth of it for stock Watermill")
	flag.DurationVar(&o.lasting, "for", 5*time.Second, "`time` of each measurement of producers and of latency, at least 1s")
	flag.IntVar(&o.runs, "runs", 3, "`number` of runs, at least 1; the table shows the median")
	flag.Parse()
	dsn, url := os.Getenv("PG_DSN"), os.Getenv("AMQP_URL")
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("%q is no flag; see -help", flag.Arg(0))
	case dsn == "" || url == "":
		return fmt.Errorf("PG_DSN is %q and AMQP_URL is %q: set both, or run make peers", dsn, url)
	case o.messages < 1000 || o.lasting < time.Second || o.runs < 1:
		return fmt.Errorf("-messages is %d, -for is %v and -runs is %d: at least 1000, 1s and 1", o.messages, o.lasting, o.runs)
	}
	rows, err := measure(ctx, dsn, url, o)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "what\twho\tmedian\tmin..max\tunit")
	for _, r := range rows {
		low, middle, high := r.summary()
		fmt.Fprintf(table, "%s\t%s\t%.4g\t%.4g..%.4g\t%s\n", r.what, r.who, middle, low, high, r.unit)
	}
	return table.Flush()
}
