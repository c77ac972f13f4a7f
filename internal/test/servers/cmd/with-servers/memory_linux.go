package main

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// shm is a file system in memory, see shm_overview(7).
const shm = "/dev/shm"

// Sizes in bytes that must be free: more than all tests use at the same time.
const (
	freeFiles  = 4 << 30
	freeMemory = 8 << 30
)

// memory returns a directory for temporary files that are kept in memory. It returns "" if there is too
// little room, or if programs in the directory could not be run, as in many containers.
func memory() string {
	var files unix.Statfs_t
	if err := unix.Statfs(shm, &files); err != nil || files.Flags&unix.ST_NOEXEC != 0 {
		return ""
	}
	if files.Bavail*uint64(files.Bsize) < freeFiles || available() < freeMemory {
		return ""
	}
	return shm
}

// available returns how many bytes of memory programs can get without swapping, or 0 if this is not known.
func available() (n uint64) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(info) {
		if _, err := fmt.Sscanf(string(line), "MemAvailable: %d kB", &n); err == nil {
			return n << 10
		}
	}
	return 0
}
