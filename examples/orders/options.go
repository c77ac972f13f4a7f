package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
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
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/schema"
)

// options contains the values of the flags.
type options struct {
	addr      string
	addrGiven bool

	db        string
	schema    string
	schemaSet bool
	amqp      string
	namespace string
	data      string
	lease     time.Duration

	services   int
	paymentsDB string
	only       string

	orders int
	faults bool
	outage bool

	provider bool // an outage of the payment gateway, without failed messages
	exit     bool
	timeout  time.Duration
	json     bool

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
		o.schemaSet = o.schemaSet || f.Name == "schema"
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
	watched := !o.faults && !o.exit && !o.json && o.only == ""
	check(!o.outage || watched,
		"-outage cannot be combined with -faults, -exit, -json or -only: you end it yourself, in the console")
	check(!o.provider || !o.outage && watched,
		"-provider-outage cannot be combined with -outage, -faults, -exit, -json or -only: watch it in the console")
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
	check(o.services == 1 || o.services == 2, "-services %d: must be 1 or 2", o.services)
	check(o.services != 2 || o.amqp != "", "-services 2 needs -db and -amqp: two services need a broker between them")
	check(o.paymentsDB == "" || o.services == 2, "-payments-db needs -services 2")
	_, err = pq.NewConfig(o.paymentsDB)
	check(err == nil, "-payments-db: must be postgres://user:password@host/database, or key=value pairs")
	check(o.only == "" || o.only == service.Orders || o.only == service.Payments, "-only %q: must be orders or payments", o.only)
	check(o.only != service.Orders && o.only != service.Payments || o.amqp != "" && o.services == 1 && o.orders == 0,
		"-only needs -db and -amqp, and cannot have -services 2 or -orders: one service alone handles no order")
	check(o.data == "" || isDirectory(o.data), "-data %s: must be a directory, or a new one's name", o.data)
	check(o.data == "" || o.db == "", "-data is for SQLite: with -db everything is in PostgreSQL")
	err = schema.Config{Schema: o.schema}.Validate()
	check(err == nil && o.schema != "", "-schema %q: must be letters, digits and underscores, at most 63", o.schema)
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

// withDefaults sets the defaults that depend on other options. For example, with -faults
// injected errors are not logged, and the lease is one second, so another forwarder can
// soon replace one that was killed.
func (o options) withDefaults() options {
	if o.outage || o.provider {
		o.orders, o.operator = cmp.Or(o.orders, 80), cmp.Or(o.operator, "you")
	}
	if o.lease == 0 {
		o.lease = 5 * time.Second
		if o.faults {
			o.lease = time.Second
		}
	}
	if o.only == service.Payments && !o.schemaSet {
		o.schema = service.Payments
	}
	if o.verbosity == "" {
		o.verbosity = "error"
		if o.faults || o.outage || o.provider {
			o.verbosity = "off"
		}
	}
	o.logLevel = levels[o.verbosity]
	return o
}

// operators returns the function that allows or refuses an action in the console.
// Without -operator it refuses each change. A real service would check the user's login.
func (o options) operators() func(*http.Request, console.Action) (string, error) {
	if o.operator == "" {
		return console.ReadOnly
	}
	return func(*http.Request, console.Action) (string, error) { return o.operator, nil }
}
