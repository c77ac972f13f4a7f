// Command orders is an order service that you can copy. It also contains a demo, which
// shows that no order is lost and no effect happens twice. See README.md and -help.
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

// The exit statuses.
const (
	statusOK     = 0
	statusFailed = 1 // the service could not start, or an order was lost or handled twice
	statusUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the command and returns its exit status.
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
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(stderr, "orders: interrupted before it had started")
		return statusFailed
	}
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
