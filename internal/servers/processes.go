package servers

import (
	"slices"
	"syscall"
	"time"
)

// process is one of the system's.
type process struct {
	parent int
	state  byte // as ps prints it: T is stopped, Z ended but not waited for
}

// gone says whether a process has ended. One that nobody waits for, as happens
// below the first process of many containers, has too.
func (p process) gone() bool { return p.state == 0 || p.state == 'Z' || p.state == 'X' }

func (p process) stopped() bool { return p.state == 'T' }

// descendants returns pid and all that descend from it. Servers put their
// children into sessions of their own, where a signal to the process group
// does not reach them.
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
		_ = syscall.Kill(pid, signal) // one that has just ended is no error
	}
}

// killAll ends the processes that still run, and returns when they are gone.
func killAll(pids []int) {
	every(time.Millisecond, func() (done bool) {
		all := processes()
		left := slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return all[pid].gone() })
		signalAll(left, syscall.SIGKILL)
		return len(left) == 0
	})
}

// stopAll stops pid and all that descend from it, and returns them when they
// stand. What is about to be stopped can still fork: it is looked at again.
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

// every calls step until it is done.
func every(pause time.Duration, step func() (done bool)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !step() {
		<-tick.C
	}
}
