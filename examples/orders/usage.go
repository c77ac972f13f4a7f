package main

import (
	"flag"
	"io"
	"time"
)

const usage = `orders is a service that takes orders over HTTP. Its consumers handle each order
once. By default you need to install nothing: all data is in SQLite, and the
embedded transport delivers the events through SQLite as well.

  go run ./examples/orders                                   serve
  go run ./examples/orders -outage                           try the console: replay payments that have failed
  go run ./examples/orders -provider-outage                  the payment gateway is down for a while: no payment fails
  go run ./examples/orders -orders 200 -faults -exit         show that no order is lost or handled twice
  go run ./examples/orders -data /tmp/shop                   keep the data, so that you can kill and restart it
  go run ./examples/orders -db postgres://... -amqp amqp://...   PostgreSQL and RabbitMQ
  ... -services 2                                            orders and payments as two services with two databases
  ... -only payments                                         one of them, as a process of its own

  curl -i localhost:8080/orders -H 'Content-Type: application/json' -H 'Idempotency-Key: 1' -d \
    '{"shop":"berlin","customer":"Ada","currency":"EUR","lines":[{"sku":"tea","quantity":2,"unit_price":450}]}'
  curl localhost:8080/orders/ID        the same order of a "unicorn" is refused and refunded
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

func newFlags(o *options) *flag.FlagSet {
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller writes the error, without the usage text
	flags.StringVar(&o.addr, "addr", "127.0.0.1:8080", "serve HTTP on this `address`; port 0 takes any free port")
	flags.StringVar(&o.db, "db", "", "`DSN` of PostgreSQL, such as postgres://user:password@host/database (default: SQLite)")
	flags.StringVar(&o.schema, "schema", "orders", "PostgreSQL schema for the tables (default of a service payments of its own: payments)")
	flags.StringVar(&o.amqp, "amqp", "", "`URL` of RabbitMQ, such as amqp://user:password@host/ (default: the embedded transport)")
	flags.StringVar(&o.namespace, "namespace", "orders", "prefix for the names of exchanges and queues")
	flags.IntVar(&o.services, "services", 1, "1: one service; 2: orders and payments, with two databases and RabbitMQ between them")
	flags.StringVar(&o.paymentsDB, "payments-db", "", "with -services 2: `DSN` of the second database (default: created beside that of -db)")
	flags.StringVar(&o.only, "only", "", "run one `service` alone, orders or payments, with its own -db (default: both)")
	flags.StringVar(&o.data, "data", "", "`directory` for the files of SQLite (default: a temporary one)")
	flags.DurationVar(&o.lease, "lease", 0, "how long the work of a killed process waits for another one (default 5s, with -faults 1s)")
	flags.IntVar(&o.orders, "orders", 0, "place this number of orders, and report")
	flags.BoolVar(&o.outage, "outage", false, "place 80 orders, or -orders, of which some payments fail: you replay them in the console")
	flags.BoolVar(&o.provider, "provider-outage", false,
		"place 80 orders, or -orders, while the payment gateway is down; a breaker lets the payments wait")
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
