package servers

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// removeSharedMemory removes the segment that a killed PostgreSQL has left:
// only its restart would, and systems allow a few thousand.
func removeSharedMemory(pidFile string) {
	if id := sharedMemoryID(pidFile); id >= 0 {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}

// sharedMemoryID returns the segment that is noted in the file postmaster.pid,
// as the second number of the seventh line; -1 if there is none. A server that
// ended by itself has removed both.
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
