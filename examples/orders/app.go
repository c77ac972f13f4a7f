package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/watermill-once/once/examples/orders/demo"
	"github.com/watermill-once/once/examples/orders/service"
)

// app is the service with what is around it: the databases, the mail provider,
// the demo.
type app struct {
	options options
	stdout  io.Writer
	stderr  io.Writer
	say     io.Writer // for people: stdout, unless that is for JSON

	service  *service.Service
	listener net.Listener
	demo     *demo.Demo
	closers  []func() error
}

// run serves until ctx ends, or the demo has with -exit. ok is what the report
// says.
func (a *app) run(ctx context.Context) (ok bool, err error) {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	// The demo need not wait for a service that has failed.
	driving, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	served := make(chan error, 1)
	go func() {
		err := a.service.Run(serving, a.listener)
		failed(errors.Join(err, errors.New("the service has ended")))
		served <- err
	}()
	if a.options.orders == 0 && !a.options.exit {
		return true, <-served
	}

	driving, cancel := context.WithTimeoutCause(driving, a.options.timeout,
		fmt.Errorf("the time of -timeout %v is up", a.options.timeout))
	defer cancel()
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
	// Count when nothing can happen any more.
	stop()
	err = <-served
	ok, reportErr := a.report(ctx)
	return ok, errors.Join(err, reportErr)
}

// errInterrupted: what is missing then is not lost, it is under way.
var errInterrupted = errors.New("interrupted before everything was done")

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

func (a *app) closeLater(closer func() error) { a.closers = append(a.closers, closer) }

// close closes everything that is not the service's own, the last first.
func (a *app) close() error {
	var errs []error
	for _, closer := range slices.Backward(a.closers) {
		errs = append(errs, closer())
	}
	a.closers = nil
	return errors.Join(errs...)
}
