package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-once/once/console"
	"github.com/watermill-once/once/schema"
)

const usage = `orders is a service that takes orders over HTTP. Its consumers handle each order
once. By default you need to install nothing: all data is in SQLite, and the
embedded transport delivers the events through SQLite as well.

  go run ./examples/orders                                   serve
  go run ./examples/orders -orders 200 -faults -exit         show that no order is lost or handled twice
  go run ./examples/orders -data /tmp/shop                   keep the data, so that you can kill and restart it
  go run ./examples/orders -db postgres://... -amqp amqp://...   PostgreSQL and RabbitMQ

  curl -i localhost:8080/orders -H 'Content-Type: application/json' -H 'Idempotency-Key: 1' -d \
    '{"shop":"berlin","customer":"Ada","currency":"EUR","lines":[{"sku":"tea","quantity":2,"unit_price":450}]}'
  curl localhost:8080/orders/ID
  curl localhost:8080/health/ready
  curl localhost:8080/metrics

http://localhost:8080/ shows the latest orders and the messages in quarantine,
http://localhost:8080/console/ the outbox, dead letters, quarantine and replays.
OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 sends traces there.

With -orders or -exit, the last line is a summary that is counted in the database
and the queues. The exit status is 0 if no order is lost or handled twice, 1 if an
order is or if the service cannot start, and 2 if a flag has a bad value.

Flags:
`

// options contains the values of the flags.
type options struct {
	addr      string
	addrGiven bool

	db        string
	schema    string
	amqp      string
	namespace string
	data      string
	lease     time.Duration

	orders  int
	faults  bool
	exit    bool
	timeout time.Duration
	json    bool

	operator string

	verbosity string
	logLevel  slog.Level
}

// off is a level above every log level.
const off = slog.Level(100)

var levels = map[string]slog.Level{
	"off": off, "error": slog.LevelError, "warn": slog.LevelWarn, "info": slog.LevelInfo,
	"debug": slog.LevelDebug, "trace": slog.LevelDebug - 4,
}

func newFlags(o *options) *flag.FlagSet {
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller writes the error, without the usage text
	flags.StringVar(&o.addr, "addr", "127.0.0.1:8080", "serve HTTP on this `address`; port 0 takes any free port")
	flags.StringVar(&o.db, "db", "", "`DSN` of PostgreSQL, such as postgres://user:password@host/database (default: SQLite)")
	flags.StringVar(&o.schema, "schema", "orders", "PostgreSQL schema for the tables")
	flags.StringVar(&o.amqp, "amqp", "", "`URL` of RabbitMQ, such as amqp://user:password@host/ (default: the embedded transport)")
	flags.StringVar(&o.namespace, "namespace", "orders", "prefix for the names of exchanges and queues")
	flags.StringVar(&o.data, "data", "", "`directory` for the files of SQLite (default: a temporary one)")
	flags.DurationVar(&o.lease, "lease", 0, "how long the work of a killed process waits for another one (default 5s, with -faults 1s)")
	flags.IntVar(&o.orders, "orders", 0, "place this number of orders, and report")
	flags.BoolVar(&o.faults, "faults", false, "with -orders: inject faults of every kind meanwhile")
	flags.BoolVar(&o.exit, "exit", false, "stop when all orders are handled, and report")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Minute, "how long placing and handling all orders may take")
	flags.StringVar(&o.operator, "operator", "", "allow changes in the console, by this `name` and without a login (default: read-only)")
	flags.BoolVar(&o.json, "json", false, "report as one JSON object, with nothing else on standard output")
	flags.StringVar(&o.verbosity, "v", "", "log `level`: off, error, warn, info, debug, trace (default error, with -faults off)")
	return flags
}

func help(w io.Writer) {
	_, _ = io.WriteString(w, usage)
	flags := newFlags(&options{})
	flags.SetOutput(w)
	flags.PrintDefaults()
}

// parse returns the options. Its error is flag.ErrHelp, or names each flag that has an
// invalid value.
func parse(args []string) (options, error) {
	var o options
	flags := newFlags(&o)
	flags.VisitAll(func(f *flag.Flag) { f.Value = explained{f.Value} })
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var errs []error
	if flags.NArg() > 0 {
		errs = append(errs, fmt.Errorf("%q is no flag", flags.Arg(0)))
	}
	flags.Visit(func(f *flag.Flag) {
		o.addrGiven = o.addrGiven || f.Name == "addr"
		// If UNSET is not set, -db "$UNSET" must not choose SQLite.
		if f.DefValue == "" && f.Value.String() == "" {
			errs = append(errs, fmt.Errorf("-%s is empty: give it a value, or leave it out", f.Name))
		}
	})
	errs = append(errs, o.validate())
	return o.withDefaults(), errors.Join(errs...)
}

// mostOrders is the highest allowed value of -orders.
const mostOrders = 10_000_000

var namespaces = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// validate returns an error that names each flag with an invalid value.
func (o options) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.orders >= 0 && o.orders <= mostOrders, "-orders %d: must be in 0..%d", o.orders, mostOrders)
	check(!o.faults || o.orders > 0, "-faults needs -orders: without orders there is nothing to harm")
	check(!o.json || o.orders > 0 || o.exit, "-json needs -orders or -exit: without them there is no report")
	check(o.timeout > 0, "-timeout %v: must be positive", o.timeout)
	check(o.lease == 0 || o.lease >= 500*time.Millisecond, "-lease %v: must be at least 500ms", o.lease)
	_, port, err := net.SplitHostPort(o.addr)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(context.Background(), "tcp", port) // needs no network, because the port is looked up in a table
	}
	check(err == nil, "-addr %q: must be host:port, with a port in 0..65535", o.addr)
	// The next two errors do not say why the value is invalid, because a parser's error
	// may contain the password.
	_, err = pq.NewConfig(o.db)
	check(err == nil, "-db: must be postgres://user:password@host/database, or key=value pairs")
	check(o.amqp == "" || validAMQP(o.amqp), "-amqp: must be amqp://user:password@host/, with special characters percent-encoded")
	check(o.amqp == "" || o.db != "", "-amqp needs -db: with a broker the database is to be PostgreSQL")
	check(o.data == "" || isDirectory(o.data), "-data %s: must be a directory, or a new one's name", o.data)
	check(o.data == "" || o.db == "", "-data is for SQLite: with -db everything is in PostgreSQL")
	if err := (schema.Config{Schema: o.schema}).Validate(); err != nil || o.schema == "" {
		check(false, "-schema %q: must be letters, digits and underscores, at most 63", o.schema)
	}
	check(namespaces.MatchString(o.namespace),
		"-namespace %q: must be letters, digits, dots, hyphens and underscores, at most 100", o.namespace)
	if _, known := levels[o.verbosity]; !known && o.verbosity != "" {
		check(false, "-v %s: must be one of %s", o.verbosity, strings.Join(slices.Sorted(maps.Keys(levels)), ", "))
	}
	return errors.Join(errs...)
}

// isDirectory reports whether path is a directory, or can be created as one.
func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir() || err != nil && !errors.Is(err, syscall.ENOTDIR)
}

// withDefaults sets the defaults that depend on -faults: injected errors are not
// logged, and the lease of a forwarder that has stopped expires soon.
func (o options) withDefaults() options {
	if o.lease == 0 {
		o.lease = 5 * time.Second
		if o.faults {
			o.lease = time.Second
		}
	}
	if o.verbosity == "" {
		o.verbosity = "error"
		if o.faults {
			o.verbosity = "off"
		}
	}
	o.logLevel = levels[o.verbosity]
	return o
}

// operators returns who may do what in the console: without -operator nobody may
// change anything. A service would ask who is logged in.
func (o options) operators() func(*http.Request, console.Action) (string, error) {
	if o.operator == "" {
		return console.ReadOnly
	}
	return func(*http.Request, console.Action) (string, error) { return o.operator, nil }
}
