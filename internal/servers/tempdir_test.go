package servers

import (
	"os"
	"testing"
)

func TestDirectoriesOfEndedProcessesAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	exists := func(dir tempDir) bool {
		_, err := os.Stat(dir.path)
		return err == nil
	}
	create := func() tempDir {
		t.Helper()
		dir, err := newTempDir("test")
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}

	dead, living := create(), create()
	if !exists(dead) || !exists(living) {
		t.Fatal("a directory that is in use was removed")
	}
	_ = dead.lock.Close() // the system does this when a process ends
	third := create()
	if exists(dead) || !exists(living) {
		t.Errorf("the directory of the ended process exists: %v, of the running process: %v; want only the latter", exists(dead), exists(living))
	}
	for _, dir := range []tempDir{living, third} {
		if err := dir.remove(); err != nil || exists(dir) {
			t.Errorf("remove: %v, exists %v", err, exists(dir))
		}
	}
}
