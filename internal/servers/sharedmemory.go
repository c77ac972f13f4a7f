package servers

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// removeSharedMemory removes the shared memory segment of a PostgreSQL server that was
// killed. Otherwise the segment would stay until the machine restarts, and a machine
// allows only a few thousand segments.
func removeSharedMemory(pidFile string) {
	if id := sharedMemoryID(pidFile); id >= 0 {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}

// sharedMemoryID returns the id of the shared memory segment: the second number of the
// seventh line of the file postmaster.pid. It returns -1 if the file or the number is
// missing. A server that was not killed has removed both the file and the segment.
func sharedMemoryID(pidFile string) int {
	content, err := os.ReadFile(pidFile)
	if err != nil {
		return -1
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) < 7 {
		return -1
	}
	fields := strings.Fields(lines[6])
	if len(fields) != 2 {
		return -1
	}
	id, err := strconv.Atoi(fields[1])
	if err != nil {
		return -1
	}
	return id
}
