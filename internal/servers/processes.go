package servers

import (
	"slices"
	"syscall"
	"time"
)

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

// killAll kills the processes in pids that still run, and returns when they have ended.
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

// every calls step repeatedly until it returns true. It pauses after each call that
// returns false.
func every(pause time.Duration, step func() (done bool)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !step() {
		<-tick.C
	}
}
