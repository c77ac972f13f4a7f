// Command bench measures against real servers, side by side and in one run:
// what this module does, what stock Watermill does, and the ceiling of the raw
// protocol. It prints one table; the ratios are what is to be compared, the
// absolute figures are this machine's.
//
// PG_DSN and AMQP_URL say where the servers are; `make bench` sees to that.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

type options struct {
	messages      int
	stockMessages int
	runs          int
	queues        string
	out           string
	pgDSN         string
	amqpURL       string
}

func main() { os.Exit(command(os.Args[1:])) }

func command(args []string) (status int) {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func parse(args []string) (options, error) {
	o := options{pgDSN: os.Getenv("PG_DSN"), amqpURL: os.Getenv("AMQP_URL")}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.messages, "messages", 40_000, "messages of a run")
	flags.IntVar(&o.stockMessages, "stock-messages", 4_000, "messages of a run of stock Watermill, which is slower")
	flags.IntVar(&o.runs, "runs", 3, "runs of each measurement; they take turns, and the table has their medians")
	flags.StringVar(&o.queues, "queues", "both", "kinds of RabbitMQ queue: quorum, classic or both")
	flags.StringVar(&o.out, "out", "", "write the rows to this file, as JSON")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var errs []error
	for name, n := range map[string]int{"-messages": o.messages, "-stock-messages": o.stockMessages, "-runs": o.runs} {
		if n < 1 {
			errs = append(errs, fmt.Errorf("%s is %d: less than 1", name, n))
		}
	}
	if _, ok := queueKinds[o.queues]; !ok {
		errs = append(errs, fmt.Errorf("-queues is %q, none of quorum, classic, both", o.queues))
	}
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q", flags.Arg(0)))
	}
	for name, value := range map[string]string{"PG_DSN": o.pgDSN, "AMQP_URL": o.amqpURL} {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s is not set: run make bench", name))
		}
	}
	return o, errors.Join(errs...)
}

var queueKinds = map[string][]string{
	"quorum":  {"quorum"},
	"classic": {"classic"},
	"both":    {"quorum", "classic"},
}

func run(ctx context.Context, o options) error {
	about, err := facts(ctx, o)
	if err != nil {
		return err
	}
	about.print(os.Stdout)

	var rows []row
	for _, kind := range queueKinds[o.queues] {
		more, err := forwarding(ctx, o, kind)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	printTable(os.Stdout, rows)
	if o.out == "" {
		return nil
	}
	encoded, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.out, append(encoded, '\n'), 0o644)
}

// forwarding measures how fast messages that wait in an outbox are confirmed
// by the broker, and how fast they could be.
func forwarding(ctx context.Context, o options, kind string) ([]row, error) {
	raw := series{ID: "raw-" + kind, What: "raw pipelined confirms, " + kind + " queue", Unit: "msg/s"}
	stock := series{ID: "stock-" + kind, What: "stock forwarder with confirms and a channel pool, " + kind, Unit: "msg/s"}
	ours := series{ID: "drain-" + kind, What: "forwarder with rabbit.Publisher, " + kind, Unit: "msg/s"}
	for n := range o.runs {
		for _, measure := range []struct {
			into     *series
			messages int
			do       func(ctx context.Context, o options, b *broker, messages int) (float64, error)
		}{
			{&raw, o.messages, measureRaw},
			{&stock, o.stockMessages, measureStock},
			{&ours, o.messages, measureOurs},
		} {
			rate, err := onFreshQueue(ctx, o, kind, measure.messages, measure.do)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", measure.into.What, err)
			}
			fmt.Fprintf(os.Stderr, "run %d of %d: %-60s %8.0f msg/s\n", n+1, o.runs, measure.into.What, rate)
			measure.into.values = append(measure.into.values, rate)
		}
	}
	return []row{
		raw.row(),
		stock.row(),
		ours.against(raw, 0),
		ours.named("-per-stock", "the same, against the stock forwarder").against(stock, 8),
	}, nil
}
