package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runCommand runs a command with additional environment variables. It forwards signals
// to the command, and returns its exit status.
func runCommand(args, environment []string, signals <-chan os.Signal, stderr io.Writer) int {
	command := exec.Command(args[0], args[1:]...)
	command.Env = append(os.Environ(), environment...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		_, _ = fmt.Fprintln(stderr, "with-servers:", err)
		return statusNoStart
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // the result is in ProcessState
	}()
	for {
		select {
		case received := <-signals:
			if !fromTerminal(received) {
				_ = command.Process.Signal(received)
			}
		case <-ended:
			return status(command.ProcessState)
		}
	}
}

// fromTerminal reports whether the signal may come from the keyboard of a terminal. The
// terminal sends a signal to all processes in the foreground, so the command has
// received it already. Such a signal is not forwarded, because the command may treat a
// second signal as a request to exit immediately.
func fromTerminal(received os.Signal) bool {
	if received != os.Interrupt && received != syscall.SIGQUIT {
		return false
	}
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer func() { _ = terminal.Close() }()
	foreground, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

// status returns the exit status of a process in the way that shells report it.
func status(state *os.ProcessState) int {
	if wait, ok := state.Sys().(syscall.WaitStatus); ok && wait.Signaled() {
		return signaled(wait.Signal())
	}
	return state.ExitCode()
}

// processorTime returns the processor time of all children that have ended, and of their
// descendants.
func processorTime() time.Duration {
	var used unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &used) // it fails only for invalid arguments
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
