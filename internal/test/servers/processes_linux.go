package servers

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// dieWithParent makes the kernel send the given signal to a child when this process
// ends.
func dieWithParent(attr *syscall.SysProcAttr, signal syscall.Signal) { attr.Pdeathsig = signal }

// processes returns all processes of the system, by process id. It reads /proc, because
// small systems have no ps.
func processes() map[int]process {
	all := make(map[int]process)
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended meanwhile
		}
		// The format is "pid (command) state parent ...". The command may contain any
		// characters, so the fields after the last ")" are used.
		fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
		if len(fields) < 2 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		parent, _ := strconv.Atoi(string(fields[1]))
		all[pid] = process{parent: parent, state: fields[0][0]}
	}
	return all
}
