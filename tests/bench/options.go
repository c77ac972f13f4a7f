package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/test/cmdline"
	"github.com/watermill-once/once/internal/test/servers"
)

// errUsage reports an invalid command line.
var errUsage = errors.New("see -help")

type options struct {
	groups  []group
	kinds   []string // types of queues
	runs    int
	out     string
	before  string // file with the baseline, or ""
	pgDSN   string
	amqpURL string
	sizes
}

// Upper limits of the options.
const (
	mostRuns     = 1000
	mostMessages = 10_000_000 // all messages are in memory
	mostCompared = 100_000_000

	fewestCompared = 1000 // enough for the eight ids that differ
)

// sizes says how many messages and rows the measurements use, and how long they take.
type sizes struct {
	messages int // forwarded messages
	slow     int // the same, for measurements that handle one message at a time

	backlog int // size of a long backlog
	start   int // messages of the long backlog that are drained
	small   int // size of a short backlog
	rounds  int // how often the short backlog is drained

	ahead    int           // messages that always wait in a measurement with a snapshot
	hold     time.Duration // how long a measurement with an open snapshot takes
	baseline time.Duration // how long the same measurement without a snapshot takes
	stopped  time.Duration // how long to wait for messages that do not arrive

	producing  time.Duration
	delivering time.Duration
	resting    time.Duration

	consume    int // messages that are consumed
	remembered int // ids in a filled inbox
	compared   int // ids in a sent log, and in an inbox that is compared with it

	entries int // entries in the quarantine that an operator looks at; the number of dead letters is the same
	rows    int // rows in the outbox whose status an operator reads
	waiting int // consumers with a backlog

	watched  int           // messages in the outbox; an eighth as many are consumed
	watching time.Duration // how long they are forwarded and consumed, in turns with an open overview and without
	window   time.Duration // how long each turn takes: an open overview makes one request in this time
}

func newSizes(quick bool) sizes {
	if quick {
		return sizes{
			messages: 10_000,
			backlog:  100_000, start: 20_000, small: 5_000, rounds: 3,
			ahead: 20_000, hold: 4 * time.Second, baseline: 2 * time.Second, stopped: time.Second,
			producing: time.Second, delivering: 2 * time.Second, resting: 2 * time.Second,
			remembered: 200_000, compared: 100_000,
			entries: 20_000, rows: 100_000, waiting: 560,
			watched: 200_000, watching: 2 * time.Second, window: 500 * time.Millisecond,
		}
	}
	return sizes{
		messages: 40_000,
		backlog:  1_000_000, start: 100_000, small: 10_000, rounds: 5,
		ahead: 20_000, hold: time.Minute, baseline: 20 * time.Second, stopped: 3 * time.Second,
		producing: 4 * time.Second, delivering: 10 * time.Second, resting: 20 * time.Second,
		remembered: 10_000_000, compared: 1_000_000,
		entries: 1_000_000, rows: 10_000_000, waiting: 560,
		watched: 2_500_000, watching: 100 * time.Second, window: 5 * time.Second,
	}
}

var queueKinds = map[string][]string{
	"quorum":  {"quorum"},
	"classic": {"classic"},
	"both":    {"quorum", "classic"},
}

// flagValues contains the values of the flags.
type flagValues struct {
	only, queues   string
	out, baseline  string
	quick          bool
	runs, messages int
	compared       int
}

func newFlags() (*flag.FlagSet, *flagValues) {
	values := &flagValues{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are returned, help is printed by help
	flags.StringVar(&values.only, "only", "", "measure only these `groups`, separated by commas")
	flags.BoolVar(&values.quick, "quick", false, "small sizes: to see whether it works")
	flags.IntVar(&values.runs, "runs", 3, "`times` that each measurement is made, in turns with the others of its group")
	flags.IntVar(&values.messages, "messages", 0,
		fmt.Sprintf("`number` of messages of a run; a quarter of it where they are consumed, "+
			"a tenth where they go one at a time (default %d, quick %d)",
			newSizes(false).messages, newSizes(true).messages))
	flags.IntVar(&values.compared, "compared", 0, fmt.Sprintf("`number` of ids of the group reconcile, at least 1000 "+
		"(default %d, quick %d)", newSizes(false).compared, newSizes(true).compared))
	flags.StringVar(&values.queues, "queues", "both", "`kinds` of RabbitMQ queue: quorum, classic or both; "+
		"of both, groups other than drain take quorum")
	flags.StringVar(&values.baseline, "baseline", "", "compare the ratios with those of this `file`, which -out has written")
	flags.StringVar(&values.out, "out", "", "write the rows to this `file`, as JSON")
	return flags, values
}

func help(w io.Writer) {
	fmt.Fprint(w, "bench measures against the PostgreSQL of PG_DSN and the RabbitMQ of AMQP_URL,\n"+
		"and prints a table; docs/contributing/benchmarks.md explains its rows.\n\nGroups:\n")
	for _, g := range groups() {
		fmt.Fprintf(w, "  %-12s%s\n", g.name, g.about)
	}
	fmt.Fprint(w, "\nFlags:\n")
	flags, _ := newFlags()
	flags.SetOutput(w)
	flags.PrintDefaults()
}

// parse returns the options of a command line. It returns flag.ErrHelp if the user asks
// for help, and otherwise an error that names every invalid option, or nil.
func parse(args []string) (options, error) {
	flags, values := newFlags()
	if err := cmdline.Parse(flags, args); errors.Is(err, flag.ErrHelp) {
		return options{}, err
	} else if err != nil {
		return options{}, fmt.Errorf("%w; %w", err, errUsage)
	}

	o := options{
		kinds:   queueKinds[values.queues],
		runs:    values.runs,
		out:     values.out,
		before:  values.baseline,
		pgDSN:   os.Getenv("PG_DSN"),
		amqpURL: os.Getenv("AMQP_URL"),
		sizes:   newSizes(values.quick),
	}
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := cmdline.Check(flags); err != nil {
		errs = append(errs, err)
	}
	var err error
	if o.groups, err = choose(values.only); err != nil {
		errs = append(errs, err)
	}
	if o.kinds == nil {
		refuse("-queues is %q, none of quorum, classic, both", values.queues)
	}
	if o.runs < 1 || o.runs > mostRuns {
		refuse("-runs is %d: must be in 1..%d", o.runs, mostRuns)
	}
	flags.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "messages":
			o.messages = values.messages
		case "compared":
			o.compared = values.compared
		}
	})
	if o.messages < 1 || o.messages > mostMessages {
		refuse("-messages is %d: must be in 1..%d", o.messages, mostMessages)
	}
	if o.compared < fewestCompared || o.compared > mostCompared {
		refuse("-compared is %d: must be in %d..%d", o.compared, fewestCompared, mostCompared)
	}
	if o.out != "" {
		if err := cmdline.Writable(o.out); err != nil { // checked now, not after an hour of measurements
			refuse("-out: must be a file that can be written: %w", err)
		}
	}
	if o.before != "" {
		if _, err := readBaseline(o.before); err != nil { // read now, not after an hour of measurements
			refuse("-baseline: %w", err)
		}
	}
	o.slow = max(1, o.messages/10)
	o.consume = max(1, o.messages/4)
	if o.pgDSN == "" {
		refuse("PG_DSN is not set: run make bench")
	} else if !strings.HasPrefix(o.pgDSN, "postgres://") && !strings.HasPrefix(o.pgDSN, "postgresql://") {
		// The measurements replace the name of the database in the URL with the names of their own
		// databases.
		refuse("PG_DSN must be a URL, postgres://user:password@host/database")
	}
	if o.amqpURL == "" {
		refuse("AMQP_URL is not set: run make bench")
	}
	if err := servers.CheckVariables(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return options{}, fmt.Errorf("%w; %w", errors.Join(errs...), errUsage)
	}
	return o, nil
}

func choose(list string) ([]group, error) {
	all := groups()
	if list == "" {
		return all, nil
	}
	wanted := strings.Split(list, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(all, func(g group) bool { return g.name == name }) {
			return nil, fmt.Errorf("-only: there is no group %q, only %s", name, names(all))
		}
	}
	return slices.DeleteFunc(all, func(g group) bool { return !slices.Contains(wanted, g.name) }), nil
}

func names(groups []group) string {
	var list []string
	for _, g := range groups {
		list = append(list, g.name)
	}
	return strings.Join(list, ", ")
}
