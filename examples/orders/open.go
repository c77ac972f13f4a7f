package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"golang.org/x/term"

	"github.com/watermill-once/once/examples/orders/demo"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/examples/orders/telemetry"
	"github.com/watermill-once/once/retry"
)

// open opens the databases, the transport, the services and their listeners.
func open(ctx context.Context, o options, stdout, stderr io.Writer) (*app, error) {
	a := &app{options: o, stdout: stdout, stderr: stderr, say: stdout}
	if o.json {
		a.say = stderr
	}
	if err := a.open(ctx); err != nil {
		for _, p := range a.parts {
			err = errors.Join(err, p.service.Close())
		}
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// startTimeout limits how long the process waits for databases and the broker. A busy
// machine can need many seconds to create the tables.
const startTimeout = 2 * time.Minute

func (a *app) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %s", startTimeout))
	defer cancel()
	logger := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: a.options.logLevel}))
	providers, err := telemetry.Start(ctx, "orders", logger)
	if err != nil {
		return err
	}
	a.closeLater(func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return providers.Close(ctx)
	})
	config := service.Config{Lease: a.options.lease, Metrics: providers.Metrics, Logger: logger}
	if a.options.orders > 0 { // with the default policy, retries take ten minutes, which is too long for a demo
		config.Retry = retry.Policy{Delayed: 4, Base: 50 * time.Millisecond, Factor: 2}
	}
	var faults *demo.Faults
	if a.options.faults {
		faults = demo.NewFaults(a.options.orders)
	}
	config.Hooks = faults.Hooks()
	switch {
	case a.options.outage:
		a.outage = demo.NewOutage()
		config.Hooks = a.outage.Hooks()
	case a.options.provider:
		a.outage = demo.NewProviderOutage()
		config.Hooks = a.outage.Hooks()
		config.Breaker = &retry.Breaker{MaxWait: 2 * time.Second} // a short outage, for a demo
	case !a.options.faults: // which fail most calls for no reason that a breaker helps against
		config.Breaker = &retry.Breaker{}
	}
	config.Operators = a.options.operators()

	parts, err := a.databases(ctx)
	if err != nil {
		return err
	}
	a.demo = &demo.Demo{Orders: a.options.orders, Faults: faults, Progress: a.progress()}
	for _, p := range parts {
		if err := a.openPart(ctx, p, config, watermill.NewSlogLogger(logger)); err != nil {
			return err
		}
	}
	a.announce()
	orders := parts[len(parts)-1]
	a.demo.URL = "http://" + orders.listener.Addr().String()
	a.demo.Audit.Outside = a.pool(orders.outside, 1)
	return a.demo.Audit.Outside.PingContext(ctx)
}

// openPart opens the transport of a part, and builds its service.
func (a *app) openPart(ctx context.Context, p *part, config service.Config, logger watermill.LoggerAdapter) error {
	open := a.openEmbedded
	if a.options.amqp != "" {
		open = a.openRabbitMQ
	}
	transport, err := open(p, logger)
	if err != nil {
		return err
	}
	if err := p.open(transport, a.pool(p.outside, 4), config); err != nil {
		return err
	}
	a.parts = append(a.parts, p)
	// The audit gets its connection now, because the services may use all other
	// connections of the server.
	audit := a.pool(p.database, 1)
	a.demo.Audit.Stores = append(a.demo.Audit.Stores, demo.Store{
		Names: p.names, DB: audit, Tables: p.database.Tables, Quarantine: p.service.Quarantine(),
	})
	if err := audit.PingContext(ctx); err != nil {
		return fmt.Errorf("-db: %w", cmp.Or(context.Cause(ctx), err))
	}
	return nil
}

// announce writes the addresses of the services. The address of the orders service
// comes first.
func (a *app) announce() {
	for _, p := range slices.Backward(a.parts) {
		name := p.names[0]
		fmt.Fprintf(a.say, "%s: http://%s\n%[1]s: console at %[3]s\n", name, p.listener.Addr(), p.console())
	}
}

// listen listens on -addr. If the default address is in use, it takes a free port.
func listen(addr string, given bool) (net.Listener, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil && !given {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("-addr: %w", err)
	}
	return listener, nil
}

// progress returns the progress display, which writes to standard error.
func (a *app) progress() demo.Progress {
	p := demo.Progress{Out: a.stderr}
	if file, ok := a.stderr.(*os.File); ok {
		p.Terminal = term.IsTerminal(int(file.Fd()))
	}
	return p
}
