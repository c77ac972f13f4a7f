// Command once operates the tables of this library: migrations, a ready-made forwarder
// process, dead letters, the sent log, the quarantine, and checks. docs/command-line.md
// describes each command.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv, width: terminalWidth(os.Stdout)}
	os.Exit(a.run(ctx, os.Args[1:]))
}
