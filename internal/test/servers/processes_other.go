//go:build !linux

package servers

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent does nothing, because this system has no such feature.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

func processes() map[int]process {
	all := make(map[int]process)
	output, _ := exec.Command("ps", "-axo", "pid=,ppid=,state=").Output() // every such system has ps
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		pid, _ := strconv.Atoi(fields[0])
		parent, _ := strconv.Atoi(fields[1])
		all[pid] = process{parent: parent, state: fields[2][0]}
	}
	return all
}
