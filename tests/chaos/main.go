// Command chaos tests that no message is lost and that no message takes effect twice. It
// starts its own PostgreSQL and RabbitMQ, and processes that write, forward and consume
// messages. It injects faults of many kinds, and waits until all messages are finished.
// Then it compares the effects with the committed events. docs/contributing/proof.md lists the checks.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/test/cmdline"
)

const (
	statusUsage       = 2
	statusInterrupted = 130
)

func main() {
	if told := os.Getenv(environment); told != "" {
		os.Exit(play(told))
	}
	os.Exit(command(os.Args[1:]))
}

func command(args []string) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second Ctrl-C ends the process without cleanup. A signal within two seconds of the
	// first one does not count, because one Ctrl-C may arrive twice: from the terminal and
	// from make.
	context.AfterFunc(ctx, func() { time.AfterFunc(2*time.Second, stop) })

	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		help(os.Stdout)
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return statusUsage
	}
	r, err := run(ctx, o, os.Stderr)
	if err == nil || !r.empty() {
		r.print(os.Stdout)
		if o.json != "" {
			err = errors.Join(err, r.write(o.json))
		}
	}
	if o.plot != "" && r != nil && len(r.Samples) > 0 { // also after an interrupt
		err = errors.Join(err, r.plot(o.plot))
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		if ctx.Err() != nil {
			return statusInterrupted
		}
		return 1
	case !r.passed():
		return 1
	}
	return 0
}

// errUsage reports an invalid command line.
var errUsage = errors.New("see -help")

type options struct {
	seed     uint64
	messages int           // minimum number of messages
	bites    int           // number of effective injections to reach for each kind
	waiting  int64         // backlog at which writers pause
	duration time.Duration // minimum duration
	pace     time.Duration // pause of each goroutine that writes, between two transactions
	faults   []fault
	json     string
	plot     string
	plant    string // parts that are broken on purpose, separated by commas
	old      string // the binary of an earlier release
	quorum   bool   // use quorum queues
	cluster  int    // number of nodes of RabbitMQ; 0 means one node, without a cluster
	program  string // the binary of the processes; "" means the binary of this process
}

// Upper limits of the options.
const (
	mostMessages = 1_000_000_000
	mostBites    = 1_000_000
	nodes        = 3 // the only size of a cluster
)

func newFlags() (*flag.FlagSet, *options, *string) {
	o, only := &options{waiting: mostWaiting}, ""
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are returned, help is printed by help
	flags.Uint64Var(&o.seed, "seed", 0, "`number` that the plan follows from (default: one by chance, which is printed)")
	flags.IntVar(&o.messages, "messages", 200_000, "go on until so many messages are committed")
	flags.IntVar(&o.bites, "bites", 3, "go on until each kind of fault was seen so often")
	flags.DurationVar(&o.duration, "duration", 0, "go on for at least so long")
	flags.DurationVar(&o.pace, "pace", 0,
		"pause of each of the 8 goroutines that write, after a transaction. Forwarders and consumers then poll as by default,\n"+
			"so that a soak leaves the machine to other work")
	flags.StringVar(&only, "only", "", "only these `kinds` of fault, separated by commas")
	flags.StringVar(&o.json, "json", "", "write the result to this `file` too")
	flags.StringVar(&o.plot, "plot", "", "draw what processes and tables use to this `file`, an SVG")
	flags.StringVar(&o.old, "old", "", "this command as an earlier release built it, a `file`: for old-and-new")
	flags.BoolVar(&o.quorum, "quorum", false, "use quorum queues, not classic queues")
	flags.IntVar(&o.cluster, "cluster", 0, "3: use three nodes of RabbitMQ with quorum queues, and PostgreSQL with a synchronous standby")
	flags.StringVar(&o.plant, "plant", "", "break `parts` on purpose, to see that it is found: "+strings.Join(plants, ","))
	return flags, o, &only
}

func help(w io.Writer) {
	fmt.Fprint(w, "chaos starts servers and processes, injects faults, and counts what was lost or\n"+
		"took effect twice. It goes on until every kind of fault was seen often enough.\n\nKinds of fault:\n")
	for _, f := range faults() {
		fmt.Fprintf(w, "  %-24s%s\n", f.name, f.about)
	}
	fmt.Fprint(w, "\nKinds of fault with -cluster 3:\n")
	for _, f := range clusterFaults() {
		fmt.Fprintf(w, "  %-24s%s\n", f.name, f.about)
	}
	fmt.Fprint(w, "\nFlags:\n")
	flags, _, _ := newFlags()
	flags.SetOutput(w)
	flags.PrintDefaults()
}

// parse returns the options of a command line. It returns flag.ErrHelp if the user asks
// for help, and otherwise an error that names every invalid option, or nil.
func parse(args []string) (options, error) {
	flags, o, only := newFlags()
	if err := cmdline.Parse(flags, args); errors.Is(err, flag.ErrHelp) {
		return options{}, err
	} else if err != nil {
		return options{}, fmt.Errorf("%w; %w", err, errUsage)
	}
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := cmdline.Check(flags); err != nil {
		errs = append(errs, err)
	}
	if o.messages < 1 || o.messages > mostMessages {
		refuse("-messages is %d: must be in 1..%d", o.messages, mostMessages)
	}
	if o.bites < 1 || o.bites > mostBites {
		refuse("-bites is %d: must be in 1..%d", o.bites, mostBites)
	}
	if o.old != "" {
		if err := isChaos(o.old); err != nil { // another program would never send beats
			refuse("-old: must be this command as an earlier release built it: %w", err)
		}
	}
	if o.old != "" && o.quorum {
		refuse("-quorum: must not be used with -old, because an earlier release uses classic queues")
	}
	if o.cluster != 0 && o.cluster != nodes {
		refuse("-cluster is %d: must be %d", o.cluster, nodes)
	}
	if o.old != "" && o.cluster != 0 {
		refuse("-cluster: must not be used with -old, because the processes of an earlier release use one address")
	}
	for name, file := range map[string]string{"json": o.json, "plot": o.plot} {
		if file == "" {
			continue
		}
		if err := cmdline.Writable(file); err != nil { // checked now, not after a run of eight hours
			refuse("-%s: must be a file that can be written: %w", name, err)
		}
	}
	if o.pace < 0 {
		refuse("-pace is %v: must not be negative", o.pace)
	}
	if o.duration < 0 {
		refuse("-duration is %v: must not be negative", o.duration)
	}
	for plant := range strings.SplitSeq(o.plant, ",") {
		if o.plant != "" && !slices.Contains(plants, plant) {
			refuse("-plant: there is no %q, only %s", plant, strings.Join(plants, ", "))
		}
	}
	var err error
	all := faults()
	if o.cluster != 0 {
		all = clusterFaults()
	}
	if o.faults, err = choose(all, *only); err != nil {
		errs = append(errs, err)
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	if len(errs) > 0 {
		return options{}, fmt.Errorf("%w; %w", errors.Join(errs...), errUsage)
	}
	return *o, nil
}

// isChaos checks that the program is this command, in this release or an earlier one. If
// not, it returns an error.
func isChaos(program string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-help")
	cmd.WaitDelay = time.Second
	says, err := cmd.Output()
	if err == nil && !strings.HasPrefix(string(says), "chaos ") {
		err = fmt.Errorf("%s -help tells of something else", program)
	}
	return err
}

func choose(all []fault, list string) ([]fault, error) {
	if list == "" {
		return all, nil
	}
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(all, func(f fault) bool { return f.name == name }) {
			return nil, fmt.Errorf("-only: there is no kind %q", name)
		}
	}
	return slices.DeleteFunc(all, func(f fault) bool { return !slices.Contains(wanted, f.name) }), nil
}

func newLog(name string) watermill.LoggerAdapter {
	return watermill.NewStdLoggerWithOut(os.Stderr, false, false).With(watermill.LogFields{"process": name})
}
