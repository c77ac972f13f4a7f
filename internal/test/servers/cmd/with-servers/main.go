// Command with-servers runs a command that needs PostgreSQL and RabbitMQ. It uses
// running servers, or starts servers. When the command ends, it stops the servers that
// it has started, except containers of docker compose.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/watermill-once/once/internal/test/cmdline"
	"github.com/watermill-once/once/internal/test/servers"
)

const usage = `with-servers runs a command with PG_DSN and AMQP_URL set to a PostgreSQL and a
RabbitMQ, and exits with its status. Each of the two is the first to be had of

  1. the one that PG_DSN or AMQP_URL names already,
  2. the one on the default port of 127.0.0.1, if it lets us in,
  3. a new one from the binaries of this machine, in a directory of its own,
     which ends with the command,
  4. a container of deploy/compose.yaml, if a docker daemon answers; it stays.

Standard error says which servers were chosen, and why. Its last line says how much
processor time the command and the new servers took. Machines of different speed can be
compared by this time better than by the time on the clock.

  with-servers [-private] [-newest] [-memory] [--] command [argument ...]

  with-servers go test ./...
  with-servers -private sh -c 'psql "$PG_DSN"; $RABBITMQCTL status'

It exits with 2 for flags or variables that cannot be used, with 125 if a server
cannot be had, with 126 if the command cannot be started.

Flags:
`

// Exit statuses of with-servers. env(1) and shells use the same statuses.
const (
	statusUsage    = 2
	statusServers  = 125
	statusNoStart  = 126
	statusSignaled = 128 // plus the number of the signal
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("with-servers", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // print errors once, without the usage text
	private := flags.Bool("private", false, "start new servers, even if others run")
	newest := flags.Bool("newest", false,
		"use the newest servers that scripts/newer-servers.sh has unpacked, unless a variable chooses servers")
	inMemory := flags.Bool("memory", false,
		"keep the files of new servers, and the command's temporary files, in memory (/dev/shm) if there is room"+
			" and TMPDIR is not set; not for benchmarks")
	err := cmdline.Parse(flags, args)
	if err == nil && *newest {
		err = servers.ChooseNewest()
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = io.WriteString(stderr, usage)
		flags.SetOutput(stderr)
		flags.PrintDefaults()
		return 0
	case err == nil && flags.NArg() == 0:
		err = errors.New("no command")
	case err == nil && !*private:
		err = servers.CheckVariables()
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "with-servers: %v; -help says more\n", err)
		return statusUsage
	}
	if _, err := exec.LookPath(flags.Arg(0)); err != nil { // fail before servers are started
		_, _ = fmt.Fprintf(stderr, "with-servers: no such command: %v\n", err)
		return statusNoStart
	}

	if *inMemory && os.Getenv("TMPDIR") == "" {
		if err := os.Setenv("TMPDIR", memory()); err != nil { // an empty TMPDIR is like none
			_, _ = fmt.Fprintln(stderr, "with-servers:", err)
			return statusServers
		}
	}

	// From here on, a signal must not end this process before the servers are stopped.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	set, status := resolve(servers.ResolveConfig{Output: stderr, Private: *private}, signals, stderr)
	if set == nil {
		return status
	}
	status = runCommand(flags.Args(), set.Environment(), signals, stderr)
	if err := set.Close(); err != nil {
		_, _ = fmt.Fprintln(stderr, err)
	}
	_, _ = fmt.Fprintf(stderr, "with-servers: %.0f s of processor time, without servers that ran already\n", processorTime().Seconds())
	return status
}

// resolve finds or starts the servers. If a signal arrives first, it returns nil and
// the exit status.
func resolve(config servers.ResolveConfig, signals <-chan os.Signal, stderr io.Writer) (*servers.Set, int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var set *servers.Set
	var err error
	resolved := make(chan struct{})
	go func() {
		defer close(resolved)
		set, err = servers.Resolve(ctx, config)
	}()

	status := 0
	select {
	case <-resolved:
	case received := <-signals:
		status = signaled(received)
		cancel()
		<-resolved
	}
	switch {
	case status != 0:
		if set != nil {
			_ = set.Close()
		}
		return nil, status
	case err != nil:
		_, _ = fmt.Fprintln(stderr, err)
		return nil, statusServers
	}
	return set, 0
}

func signaled(received os.Signal) int {
	number, _ := received.(syscall.Signal)
	return statusSignaled + int(number)
}
