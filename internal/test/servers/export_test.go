package servers

import (
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// These methods show internals to the tests of package servers_test.

func (p *Postgres) Processes() []int { return descendants(processes(), p.server.pid()) }

func (p *Postgres) Dir() string { return p.dir.path }

// SharedMemory reports whether a shared memory segment exists.
func (p *Postgres) SharedMemory(id int) bool {
	_, err := unix.SysvShmCtl(id, unix.IPC_STAT, new(unix.SysvShmDesc))
	return err == nil
}

func (p *Postgres) SharedMemoryID() int {
	return sharedMemoryID(filepath.Join(p.data(), "postmaster.pid"))
}

func (r *Rabbit) Processes() []int {
	all := processes()
	return append(descendants(all, r.server.pid()), descendants(all, r.epmd.pid())...)
}

func (r *Rabbit) Dir() string { return r.dir.path }

// Left returns the ids in pids whose processes still run.
func Left(pids []int) []int {
	all := processes()
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return all[pid].gone() })
}
