package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
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

func (c *child) failure(text string) error {
	return fmt.Errorf("%s; the end of its log (%s):\n%s", text, filepath.Base(c.log), tail(c.log))
}

func tail(name string) string {
	const atMost = 30
	content, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-atMost):], "\n")
}

// process describes a process of the system.
type process struct {
	parent int
	state  byte // as in ps: T is stopped, Z is a zombie
}

// gone reports whether the process has ended. A zombie counts as ended, because in many
// containers the first process does not wait for its children.
func (p process) gone() bool { return p.state == 0 || p.state == 'Z' || p.state == 'X' }

func (p process) stopped() bool { return p.state == 'T' }

// descendants returns pid and all its descendants. A signal must be sent to each of
// them. A signal to the process group would not reach all of them, because servers
// start children in other sessions.
func descendants(all map[int]process, pid int) []int {
	tree := []int{pid}
	for i := 0; i < len(tree); i++ {
		for child, process := range all {
			if process.parent == tree[i] && !slices.Contains(tree, child) {
				tree = append(tree, child)
			}
		}
	}
	return tree
}

func signalAll(pids []int, signal syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, signal) // a process may have ended already
	}
}

func killAll(pids []int) {
	every(time.Millisecond, func() (done bool) {
		all := processes()
		left := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return all[pid].gone() })
		signalAll(left, syscall.SIGKILL)
		return len(left) == 0
	})
}

// stopAll stops pid and all its descendants with SIGSTOP, and returns them when all are
// stopped. It lists the processes again after each signal, because a process may start
// another process before it stops.
func stopAll(pid int) (tree []int) {
	every(time.Millisecond, func() (done bool) {
		all := processes()
		tree = descendants(all, pid)
		running := slices.DeleteFunc(slices.Clone(tree), func(pid int) bool { return all[pid].gone() || all[pid].stopped() })
		signalAll(running, syscall.SIGSTOP)
		return len(running) == 0
	})
	return tree
}

func every(pause time.Duration, step func() (done bool)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !step() {
		<-tick.C
	}
}

// unprivileged returns the user for a server that refuses to run as root: the user
// "postgres" or, if it does not exist, the user "nobody". It returns nil if this
// process is not root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // for SysProcAttr, nil means the same user
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(found.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(found.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("the server refuses to run as root, and there is neither a user postgres nor nobody")
}
