package servers

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// removeSharedMemory removes the shared memory segment of a killed PostgreSQL. Otherwise
// only a restart would remove it, and systems allow a few thousand segments.
func removeSharedMemory(pidFile string) {
	if id := sharedMemoryID(pidFile); id >= 0 {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}

// sharedMemoryID returns the id of the segment in the file postmaster.pid: the second
// number of the seventh line. It returns -1 if there is none, because a server that ends
// regularly removes both.
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
