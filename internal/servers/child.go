package servers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// child is a child process whose output goes to a file. A nil *child means that no
// process was started.
type child struct {
	cmd  *exec.Cmd
	log  string
	gone <-chan struct{} // closed when the process has ended
}

// startChild starts cmd in its own process group, so that Ctrl-C in a terminal does not
// reach the child. On Linux, the system sends the signal lastSignal to the child when
// this process ends. The output of the child is appended to the file log.
func startChild(cmd *exec.Cmd, log string, lastSignal syscall.Signal) (*child, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = output.Close() }()
	cmd.Stdout, cmd.Stderr = output, output
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	gone, err := StartChild(cmd, lastSignal)
	if err != nil {
		return nil, err
	}
	return &child{cmd: cmd, log: log, gone: gone}, nil
}

// StartChild starts cmd. On Linux, the system sends the signal lastSignal to the child
// when this process ends. The returned channel is closed when the child has ended.
// StartChild itself calls cmd.Wait, so do not call it.
func StartChild(cmd *exec.Cmd, lastSignal syscall.Signal) (gone <-chan struct{}, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	dieWithParent(cmd.SysProcAttr, lastSignal)
	ended := make(chan struct{})
	started := make(chan error)
	go func() {
		// Linux sends lastSignal when the thread that forked ends, so the thread must
		// live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the exit status does not matter
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return ended, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) running() bool {
	if c == nil {
		return false
	}
	select {
	case <-c.gone:
		return false
	default:
		return true
	}
}

// kill kills the child and all its descendants, and returns when they have ended. It
// first stops all of them with SIGSTOP, because a running process could still write
// files or start other processes.
func (c *child) kill() {
	if c.running() {
		tree := stopAll(c.pid())
		signalAll(tree, syscall.SIGKILL)
		<-c.gone
		killAll(tree)
	}
}

// stop sends a signal that should end the child. If the child still runs after the
// timeout, stop kills the child and its descendants. Descendants that outlive the child
// are killed immediately.
func (c *child) stop(signal syscall.Signal, timeout time.Duration) {
	if !c.running() {
		return
	}
	c.thaw() // a process that SIGSTOP has stopped does not handle other signals
	tree := descendants(processes(), c.pid())
	_ = c.cmd.Process.Signal(signal)
	select {
	case <-c.gone:
		killAll(tree)
	case <-time.After(timeout):
		c.kill()
	}
}

// freeze stops the child and all its descendants with SIGSTOP.
func (c *child) freeze() {
	if c.running() {
		stopAll(c.pid())
	}
}

func (c *child) thaw() {
	if c.running() {
		signalAll(descendants(processes(), c.pid()), syscall.SIGCONT)
	}
}

// failure returns an error that consists of the given text and the end of the child's
// log.
func (c *child) failure(text string) error {
	return fmt.Errorf("%s; the end of its log (%s):\n%s", text, filepath.Base(c.log), tail(c.log))
}

// tail returns the last 30 lines of a file.
func tail(name string) string {
	const atMost = 30
	content, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-atMost):], "\n")
}
