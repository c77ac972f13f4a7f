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
	"github.com/watermill-once/once/retry"
)

// open makes everything ready to run.
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
	ours, theirs, err := a.databases(ctx)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: a.options.logLevel}))
	transport, wire, err := a.transport(ours, watermill.NewSlogLogger(logger))
	if err != nil {
		return err
	}
	a.closeLater(wire.Close)

	config := service.Config{Lease: a.options.lease, Logger: logger}
	if a.options.orders > 0 { // nobody wants to wait for the default's ten minutes
		config.Retry = retry.Policy{Delayed: 4, Base: 50 * time.Millisecond, Factor: 2}
	}
	var faults *demo.Faults
	if a.options.faults {
		faults = demo.NewFaults(a.options.orders)
	}
	config.Hooks = faults.Hooks()
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

// databases returns the service's database and the mail provider's, with their
// tables. With SQLite these are two files, because a mail is sent while the
// service's has its one writer.
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

// transport returns what carries the events, and says which it is.
func (a *app) transport(database service.Database, logger watermill.LoggerAdapter) (service.Transport, demo.Wire, error) {
	if a.options.amqp != "" {
		transport, err := service.NewAMQP(a.options.amqp, a.options.namespace, logger)
		if err != nil {
			return nil, nil, fmt.Errorf("-amqp: %w", err)
		}
		wire, err := demo.NewAMQPWire(a.options.amqp, transport)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("-amqp: %w", err), transport.Close())
		}
		fmt.Fprintf(a.say, "orders: PostgreSQL (schema %s) and RabbitMQ (%s.*)\n", a.options.schema, a.options.namespace)
		return transport, wire, nil
	}
	transport, err := service.NewLocal(database)
	if err != nil {
		return nil, nil, err
	}
	kind := "SQLite"
	if a.options.db != "" {
		kind = "PostgreSQL"
	}
	fmt.Fprintf(a.say, "orders: embedded: events go through %s, inside of this process. Outbox, forwarder, inbox, retries and\n"+
		"        quarantine are the real ones, but this does not show a broker: no confirms over a network, no\n"+
		"        redelivery, no restart of a broker. -db and -amqp do, or make demo BACKEND=servers.\n", kind)
	return transport, demo.LocalWire{Transport: transport}, nil
}

// listen takes any free port if nobody asked for the one that is taken.
func (a *app) listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", a.options.addr)
	if err != nil && !a.options.addrGiven {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("-addr: %w", err)
	}
	fmt.Fprintf(a.say, "orders: http://%s\n", listener.Addr())
	return listener, nil
}

func (a *app) progress() demo.Progress {
	p := demo.Progress{Out: a.stderr}
	if file, ok := a.stderr.(*os.File); ok {
		p.Terminal = term.IsTerminal(int(file.Fd()))
	}
	return p
}
