package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"golang.org/x/term"

	"github.com/watermill-once/once/examples/orders/demo"
	"github.com/watermill-once/once/examples/orders/mail"
	"github.com/watermill-once/once/examples/orders/service"
	"github.com/watermill-once/once/examples/orders/telemetry"
	"github.com/watermill-once/once/retry"
)

// open opens the databases, the transport, the service and the listener.
func open(ctx context.Context, o options, stdout, stderr io.Writer) (*app, error) {
	a := &app{options: o, stdout: stdout, stderr: stderr, say: stdout}
	if o.json {
		a.say = stderr
	}
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

func (a *app) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
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
	ours, theirs, err := a.databases(ctx)
	if err != nil {
		return err
	}
	transport, wire, err := a.transport(ours, watermill.NewSlogLogger(logger))
	if err != nil {
		return err
	}
	a.closeLater(wire.Close)

	config := service.Config{Lease: a.options.lease, Metrics: providers.Metrics, Logger: logger}
	if a.options.orders > 0 { // with the default policy, retries take ten minutes, which is too long for a demo
		config.Retry = retry.Policy{Delayed: 4, Base: 50 * time.Millisecond, Factor: 2}
	}
	var faults *demo.Faults
	if a.options.faults {
		faults = demo.NewFaults(a.options.orders)
	}
	config.Hooks = faults.Hooks()
	config.Operators = a.options.operators()
	mailPool := theirs.Pool(4)
	a.closeLater(mailPool.Close)
	if a.service, err = service.New(ours, transport, mail.NewProvider(mailPool), config); err != nil {
		return err
	}
	if a.listener, err = a.listen(); err != nil {
		return errors.Join(err, a.service.Close())
	}

	auditPool := ours.Pool(2)
	a.closeLater(auditPool.Close)
	a.demo = &demo.Demo{
		URL:        "http://" + a.listener.Addr().String(),
		Orders:     a.options.orders,
		Faults:     faults,
		Audit:      demo.Audit{DB: auditPool, Mail: mailPool, Tables: ours.Tables},
		Wire:       wire,
		Quarantine: a.service.Quarantine(),
		Progress:   a.progress(),
	}
	return nil
}

// databases returns the database of the service and the database of the mail provider,
// and creates their tables. With SQLite these are two files, because the service sends
// a mail inside a transaction, and a file has one writer at a time.
func (a *app) databases(ctx context.Context) (ours, theirs service.Database, err error) {
	if a.options.db != "" {
		ours, err = service.Postgres(a.options.db, a.options.schema)
		theirs = ours
	} else {
		ours, theirs, err = a.files()
	}
	if err == nil {
		err = ours.Migrate(ctx)
	}
	if err == nil {
		err = theirs.Apply(ctx, mail.Tables)
	}
	if err != nil && a.options.db != "" {
		err = fmt.Errorf("-db: %w", err)
	}
	return ours, theirs, err
}

// files returns two SQLite databases, in the directory -data or in a temporary one.
func (a *app) files() (ours, theirs service.Database, err error) {
	dir := a.options.data
	if dir == "" {
		if dir, err = os.MkdirTemp("", "orders-"); err != nil {
			return ours, theirs, err
		}
		a.closeLater(func() error { return os.RemoveAll(dir) })
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return ours, theirs, err
	}
	if err = os.MkdirAll(dir, 0o750); err != nil {
		return ours, theirs, fmt.Errorf("-data: %w", err)
	}
	if ours, err = service.SQLite(filepath.Join(dir, "orders.db")); err != nil {
		return ours, theirs, err
	}
	theirs, err = service.SQLite(filepath.Join(dir, "mail-provider.db"))
	return ours, theirs, err
}

// transport opens the transport. It is RabbitMQ if -amqp is set, and otherwise the
// embedded transport.
func (a *app) transport(database service.Database, logger watermill.LoggerAdapter) (service.Transport, demo.Wire, error) {
	if a.options.amqp != "" {
		return a.openRabbitMQ(logger)
	}
	return a.openEmbedded(database)
}

// listen listens on -addr. If the default address is in use, it takes a free port.
func (a *app) listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", a.options.addr)
	if err != nil && !a.options.addrGiven {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("-addr: %w", err)
	}
	fmt.Fprintf(a.say, "orders: http://%s\norders: console at http://%[1]s/console/\n", listener.Addr())
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
