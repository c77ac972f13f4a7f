package forwarding

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/test/kit"
)

// While the disk of the tables is full, the forwarder waits. It continues when the test
// frees space.
func TestForwarderSurvivesAFullDisk(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	server := kit.PrivatePostgres(t)
	small := smallDisk(t, server.DSN("postgres"))
	admin := openDB(t, server.DSN("postgres"))
	for _, query := range []string{
		`CREATE TABLESPACE small LOCATION '` + small + `'`, `CREATE DATABASE small TABLESPACE small TEMPLATE template0`,
	} {
		_, err := admin.ExecContext(t.Context(), query)
		must(t, err)
	}
	f := newFlow(t, openDB(t, server.DSN("small")), kit.Rabbit(t).URL)
	cfg := quick(f.log)
	cfg.Lease = 3 * time.Second
	f.forward(openDB(t, server.DSN("small")), toQueues(f.url), cfg)
	f.put(10)
	f.drained()

	// The open snapshot keeps old versions of rows, so every update needs more space.
	snapshot, err := f.db.Conn(t.Context())
	must(t, err)
	defer snapshot.Close()
	_, err = snapshot.ExecContext(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`)
	must(t, err)

	filler := filepath.Join(filepath.Dir(small), "filler")
	f.eventually("the disk is full, for the forwarder too", func() bool {
		fill(t, filler)
		return f.log.Count(notRenewed) > 0
	})
	const diskFull = "53100"
	f.eventually("the outbox cannot store more messages", func() bool {
		sent := f.sent
		err := f.tryPut(100)
		if err != nil {
			f.sent = sent
		}
		return dialect.State(err) == diskFull
	})
	<-time.After(time.Second) // so that the forwarder fails several times
	must(t, os.Remove(filler))
	f.put(10)
	f.complete()
	f.told(notRenewed)
}

// smallDisk mounts a file system of some megabytes, to which the user of the server can
// write.
func smallDisk(t *testing.T, dsn string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		kit.Without(t, errors.New("only root can mount a small disk"))
	}
	var data string
	must(t, openDB(t, dsn).QueryRowContext(t.Context(), `SHOW data_directory`).Scan(&data))
	info, err := os.Stat(data)
	must(t, err)
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no owner of files here")
	}
	dir, err := os.MkdirTemp("", "once-disk-") //nolint:usetesting // other users may not read the directory of t.TempDir
	must(t, err)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		must(t, os.Remove(dir))
		kit.Without(t, fmt.Errorf("a small disk cannot be mounted: %w", err))
	}
	t.Cleanup(func() {
		must(t, syscall.Unmount(dir, syscall.MNT_DETACH))
		must(t, os.Remove(dir))
	})
	tables := filepath.Join(dir, "tables")
	must(t, os.Mkdir(tables, 0o700))
	must(t, os.Chown(tables, int(owner.Uid), int(owner.Gid)))
	must(t, os.Chmod(dir, 0o755))
	return tables
}

// fill writes to a file until the disk is full.
func fill(t *testing.T, name string) {
	t.Helper()
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer file.Close()
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
}
