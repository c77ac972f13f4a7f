package servers

import (
	"errors"
	"net"
	"os"
	"testing"
)

func TestCollided(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"RabbitMQ ended: {dist_port_already_used,17596,not_erlang}":             true,
		"RabbitMQ ended: {error,eaddrinuse}":                                    true,
		"PostgreSQL ended: could not bind IPv4 address: Address already in use": true,
		"RabbitMQ ended: the configuration is invalid":                          false,
	} {
		if got := collided(errors.New(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if !collided(errors.New("it ended"), listener.Addr().(*net.TCPAddr).Port) {
		t.Error("a port that is taken is no collision")
	}
}

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
