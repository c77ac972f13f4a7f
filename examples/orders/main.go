// Command orders is an order service to copy, and a demonstration that it loses
// nothing and does nothing twice: see README.md, and -help.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// The statuses that it exits with.
const (
	statusOK     = 0
	statusFailed = 1 // it could not start, or something was lost or done twice
	statusUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends it at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the command, for tests too.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		help(stderr)
		return statusOK
	case err != nil:
		fmt.Fprintf(stderr, "orders: %v\norders: -help lists the flags\n", err)
		return statusUsage
	}

	a, err := open(ctx, o, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "orders: cannot start: %s\n", o.redact(err))
		return statusFailed
	}
	ok, err := a.run(ctx)
	err = errors.Join(err, a.close())
	if err != nil {
		fmt.Fprintf(stderr, "orders: %s\n", o.redact(err))
	}
	if err != nil || !ok {
		return statusFailed
	}
	return statusOK
}
