package servers

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// removeSharedMemory removes the segment that a killed PostgreSQL has left:
// only a restart would, and systems allow a few thousand. Its id is the second
// number in the seventh line of the file postmaster.pid, which is gone when
// the server ended by itself.
func removeSharedMemory(pidFile string) {
	content, err := os.ReadFile(pidFile)
	if err != nil {
		return
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) < 7 {
		return
	}
	fields := strings.Fields(lines[6])
	if len(fields) != 2 {
		return
	}
	if id, err := strconv.Atoi(fields[1]); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}
