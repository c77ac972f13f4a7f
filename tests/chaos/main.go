// Command chaos tests that no message is lost and that no message takes effect twice. It
// starts its own PostgreSQL and RabbitMQ, and processes that write, forward and consume
// messages. It injects faults of many kinds, and waits until all messages are finished.
// Then it compares the effects with the committed events. docs/proof.md lists the checks.
//
// To read the code, start with options.go, run.go and world.go (the servers). role.go and
// member.go start the processes, and writer.go, forwarding.go and consuming.go are their
// work. nemesis.go strikes with the faults of fault.go and of the files faults_*.go.
// audit.go and report.go compare the effects with the events.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	statusUsage       = 2
	statusInterrupted = 130
)

func main() {
	if told := os.Getenv(environment); told != "" {
		os.Exit(play(told))
	}
	os.Exit(command(os.Args[1:]))
}

func command(args []string) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second Ctrl-C ends the process without cleanup. A signal within two seconds of the
	// first one does not count, because one Ctrl-C may arrive twice: from the terminal and
	// from make.
	context.AfterFunc(ctx, func() { time.AfterFunc(2*time.Second, stop) })

	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		help(os.Stdout)
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return statusUsage
	}
	r, err := run(ctx, o, os.Stderr)
	if err == nil || !r.empty() {
		r.print(os.Stdout)
		if o.json != "" {
			err = errors.Join(err, r.write(o.json))
		}
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		if ctx.Err() != nil {
			return statusInterrupted
		}
		return 1
	case !r.passed():
		return 1
	}
	return 0
}
