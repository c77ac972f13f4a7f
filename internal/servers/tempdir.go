package servers

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const (
	dirPrefix = "once-server-"
	lockName  = "in-use"
)

// tempDir is a directory with a locked file. The system releases the lock when this
// process ends. So a later process can recognise the directories of processes that were
// killed, and remove them.
type tempDir struct {
	path string
	lock *os.File
}

func newTempDir(name string) (tempDir, error) {
	sweepTempDirs()
	path, err := os.MkdirTemp("", dirPrefix+name+"-")
	if err != nil {
		return tempDir{}, fmt.Errorf("directory for %s: %w", name, err)
	}
	lock, err := lockDir(path)
	if err != nil {
		_ = os.RemoveAll(path)
		return tempDir{}, fmt.Errorf("directory for %s: %w", name, err)
	}
	return tempDir{path: path, lock: lock}, nil
}

// lockDir creates a lock file in a directory, locks the file, and only then gives the
// file its final name. So while the owner runs, no other process finds an unlocked file
// with this name.
func lockDir(path string) (*os.File, error) {
	lock, err := os.CreateTemp(path, lockName)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, err
	}
	if err := os.Rename(lock.Name(), filepath.Join(path, lockName)); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return lock, nil
}

func (d tempDir) remove() error {
	err := os.RemoveAll(d.path)
	_ = d.lock.Close()
	return err
}

// sweepTempDirs removes the directories whose processes have ended. It ignores
// directories of other users, because it cannot remove them.
func sweepTempDirs() {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*", lockName))
	for _, name := range locks {
		lock, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(name))
		}
		_ = lock.Close()
	}
}
