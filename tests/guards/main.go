// Command guards shows that the tests of known traps can fail. It removes the guards from
// the code, one at a time, and checks that a test fails without the guard.
//
// A guard is code that prevents a trap. For each guard there is a patch that removes it.
// The patch is in the folder testdata/guards of the package whose test must fail. The
// work tree is not changed, because the compiler reads patched copies of the files.
// PG_DSN and AMQP_URL name the servers. `make guards` sets them.
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

	"github.com/watermill-once/once/internal/test/cmdline"
	"github.com/watermill-once/once/internal/test/servers"
)

const statusUsage = 2

func main() { os.Exit(command(os.Args[1:], os.Stdout)) }

func command(args []string, out io.Writer) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var all []guard
	root, rootErr := findRoot()
	if rootErr == nil {
		all, rootErr = load(root)
	}
	chosen, timeout, err := parse(args, all)
	switch {
	case errors.Is(err, flag.ErrHelp):
		help(out, all)
		return 0
	case err != nil:
		return fail(err, statusUsage)
	case rootErr != nil:
		return fail(rootErr, 1)
	}
	if err := run(ctx, root, chosen, timeout, out); err != nil {
		return fail(err, 1)
	}
	return 0
}

func fail(err error, status int) int {
	fmt.Fprintln(os.Stderr, "guards:", err)
	return status
}

// shortest is the smallest time limit that is allowed for a test. With a shorter limit, a
// test could fail only because it is slow, and not because its guard is missing.
const shortest = 10 * time.Second

func newFlags(only *string, timeout *time.Duration) *flag.FlagSet {
	flags := flag.NewFlagSet("guards", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are returned, help is printed by help
	flags.StringVar(only, "only", "", "`numbers` of traps, separated by commas")
	flags.DurationVar(timeout, "timeout", 3*time.Minute, "for a test: one that hangs without its guard is red")
	return flags
}

func help(w io.Writer, all []guard) {
	fmt.Fprint(w, "guards takes the guards out of the code, one at a time, and sees the tests of their\ntraps fail.\n\nTraps:\n")
	for _, g := range all {
		fmt.Fprintf(w, "  %02d  %s\n", g.trap, g.what)
	}
	fmt.Fprint(w, "\nFlags:\n")
	var only string
	var timeout time.Duration
	flags := newFlags(&only, &timeout)
	flags.SetOutput(w)
	flags.PrintDefaults()
}

// errUsage reports an invalid command line.
var errUsage = errors.New("see -help")

// parse returns the chosen guards and the time limit for a test. It returns flag.ErrHelp
// if the user asks for help, and otherwise an error that names every invalid option, or
// nil.
func parse(args []string, all []guard) (chosen []guard, timeout time.Duration, err error) {
	only := ""
	flags := newFlags(&only, &timeout)
	if err := cmdline.Parse(flags, args); errors.Is(err, flag.ErrHelp) {
		return nil, 0, err
	} else if err != nil {
		return nil, 0, fmt.Errorf("%w; %w", err, errUsage)
	}
	var short error
	if timeout < shortest {
		short = fmt.Errorf("-timeout is %v: must be at least %v", timeout, shortest)
	}
	chosen, err = choose(only, all)
	if err := errors.Join(cmdline.Check(flags), short, err, servers.CheckVariables()); err != nil {
		return nil, 0, fmt.Errorf("%w; %w", err, errUsage)
	}
	return chosen, timeout, nil
}

// choose returns the guards of the traps in list. The list contains the
// numbers of traps, separated by commas. An empty list selects all guards.
func choose(list string, all []guard) ([]guard, error) {
	if list == "" || len(all) == 0 { // if the guards could not be loaded, this is reported after the errors of the command line
		return all, nil
	}
	wanted := map[int]bool{}
	for field := range strings.SplitSeq(list, ",") {
		trap, err := strconv.Atoi(field)
		if err != nil || !slices.ContainsFunc(all, func(g guard) bool { return g.trap == trap }) {
			return nil, fmt.Errorf("-only: there is no guard of trap %q", field)
		}
		wanted[trap] = true
	}
	return slices.DeleteFunc(slices.Clone(all), func(g guard) bool { return !wanted[g.trap] }), nil
}
