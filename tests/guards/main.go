// Command guards shows that the tests of known traps can fail: it takes the
// guard of each out of the code, one at a time, and sees its test go red.
//
// The work tree stays as it is: the compiler is given another text of one file.
// PG_DSN and AMQP_URL say where the servers are; `make guards` sees to that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const statusUsage = 2

func main() { os.Exit(command(os.Args[1:], os.Stdout)) }

func command(args []string, out io.Writer) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	chosen, timeout, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		help(out)
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "guards:", err)
		return statusUsage
	}
	if err := run(ctx, chosen, timeout, out); err != nil {
		fmt.Fprintln(os.Stderr, "guards:", err)
		return 1
	}
	return 0
}

func newFlags(only *string, timeout *time.Duration) *flag.FlagSet {
	flags := flag.NewFlagSet("guards", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are returned, help is printed by help
	flags.StringVar(only, "only", "", "`numbers` of traps, separated by commas")
	flags.DurationVar(timeout, "timeout", 3*time.Minute, "for a test: one that hangs without its guard is red")
	return flags
}

func help(w io.Writer) {
	fmt.Fprint(w, "guards takes the guards out of the code, one at a time, and sees the tests of their\ntraps fail.\n\nFlags:\n")
	var only string
	var timeout time.Duration
	flags := newFlags(&only, &timeout)
	flags.SetOutput(w)
	flags.PrintDefaults()
}

func parse(args []string) (chosen []guard, timeout time.Duration, err error) {
	only := ""
	flags := newFlags(&only, &timeout)
	if err := flags.Parse(args); err != nil {
		return nil, 0, err
	}
	if flags.NArg() > 0 {
		return nil, 0, fmt.Errorf("unexpected argument %q; see -help", flags.Arg(0))
	}
	if only == "" {
		return guards(), timeout, nil
	}
	for field := range strings.SplitSeq(only, ",") {
		trap, err := strconv.Atoi(field)
		of := slices.DeleteFunc(guards(), func(g guard) bool { return g.trap != trap })
		if err != nil || len(of) == 0 {
			return nil, 0, fmt.Errorf("-only: there is no guard of trap %q; see -help", field)
		}
		chosen = append(chosen, of...)
	}
	return chosen, timeout, nil
}
