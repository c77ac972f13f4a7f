package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/watermill-once/once/examples/orders/demo"
	"github.com/watermill-once/once/examples/orders/service"
)

// app consists of one or two services with their databases, the simulated companies
// that the services call (package outside), and the demo.
type app struct {
	options options
	stdout  io.Writer
	stderr  io.Writer
	say     io.Writer // output for people: stdout, or stderr with -json

	parts   []*part
	demo    *demo.Demo
	outage  *demo.Outage // nil without -outage
	closers []func() error
}

// run serves until ctx ends. With -exit it serves until the demo has ended. The result
// ok is false if the report contains errors.
func (a *app) run(ctx context.Context) (ok bool, err error) {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	// End the demo if the service fails.
	driving, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	served := make(chan error, 1)
	go func() {
		err := a.serve(serving)
		failed(errors.Join(err, errors.New("the service ended")))
		served <- err
	}()
	if a.options.orders == 0 && !a.options.exit {
		return true, <-served
	}

	driving, cancel := context.WithTimeoutCause(driving, a.options.timeout,
		fmt.Errorf("-timeout %v has passed", a.options.timeout))
	defer cancel()
	if a.outage != nil {
		err = a.runOutage(driving)
		if err != nil {
			stop()
		}
		return err == nil, errors.Join(err, <-served)
	}
	err = a.demo.Run(driving)
	if err == nil && ctx.Err() != nil {
		err = errInterrupted
	}
	if err != nil {
		stop()
		return false, errors.Join(err, <-served)
	}
	if !a.options.exit {
		ok, err = a.report(ctx)
		return ok, errors.Join(err, <-served)
	}
	// Count after the service has stopped, because then nothing changes any more.
	stop()
	err = <-served
	ok, reportErr := a.report(ctx)
	return ok, errors.Join(err, reportErr)
}

// runOutage places orders, and lets some of their payments fail. Then it prints what
// the user can do next.
func (a *app) runOutage(ctx context.Context) error {
	if a.options.provider {
		return a.runProviderOutage(ctx)
	}
	fmt.Fprintf(a.say, "%d orders are placed while the payment gateway is down for some of them. Watch it in the console.\n", a.options.orders)
	n, err := a.outage.Run(ctx, a.demo)
	if err == nil {
		fmt.Fprintf(a.say, "%d payments are in quarantine, and the gateway works again. Open %s, look at the failure, and replay it.\n",
			n, a.consoleOf(service.Payments))
	}
	return err
}

// runProviderOutage places orders while the payment gateway is down, and prints the state of
// the payments.
func (a *app) runProviderOutage(ctx context.Context) error {
	fmt.Fprintf(a.say, "%d orders are placed while the payment gateway is down. Open %sconsumers to see the breaker of payments.\n",
		a.options.orders, a.consoleOf(service.Payments))
	calls, err := a.outage.RunProvider(ctx, a.demo)
	if err == nil {
		fmt.Fprintf(a.say, "The gateway was called %d times in this time. All %d payments are captured, none is in quarantine.\n",
			calls, a.options.orders)
	}
	return err
}

// consoleOf returns the address of the console of a service.
func (a *app) consoleOf(name string) string {
	at := slices.IndexFunc(a.parts, func(p *part) bool { return slices.Contains(p.names, name) })
	return a.parts[at].console()
}

// errInterrupted reports that a signal ended the demo. In this case there is no report,
// because it would count unfinished orders as lost.
var errInterrupted = errors.New("interrupted before all orders were handled")

// report writes the report. It returns ok = true if the report contains no errors.
func (a *app) report(ctx context.Context) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	report, err := a.demo.Report(ctx)
	if err != nil {
		return false, err
	}
	if a.options.json {
		return report.OK, json.NewEncoder(a.stdout).Encode(report)
	}
	report.Write(a.stdout)
	return report.OK, nil
}

// pool opens a connection pool. The method close closes it.
func (a *app) pool(database service.Database, size int) *sql.DB {
	pool := database.Pool(size)
	a.closeLater(pool.Close)
	return pool
}

// closeLater adds closer to the functions that the method close calls.
func (a *app) closeLater(closer func() error) { a.closers = append(a.closers, closer) }

// close calls the functions that closeLater has added, in reverse order. The service
// closes its own parts.
func (a *app) close() error {
	var errs []error
	for _, closer := range slices.Backward(a.closers) {
		errs = append(errs, closer())
	}
	a.closers = nil
	return errors.Join(errs...)
}
