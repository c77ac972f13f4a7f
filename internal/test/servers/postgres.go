package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// PostgresConfig configures a private PostgreSQL.
type PostgresConfig struct {
	// Version is, for example, "18": a version that scripts/newer-servers.sh has unpacked,
	// or that is installed. Defaults to [PostgresVariable]. If that is not set, BinDir
	// decides.
	Version string

	// BinDir is the directory of postgres and initdb. Defaults to the directory in
	// PATH. If they are not in PATH, it defaults to the newest directory of the
	// packages for Debian, Red Hat and Homebrew.
	BinDir string

	// Settings are lines of postgresql.conf, for example "max_connections=20". By default,
	// max_connections is 500, and all other settings have PostgreSQL's defaults.
	Settings []string

	// Patience is how long the start may take. Defaults to 3 minutes.
	Patience time.Duration
}

// Postgres is a private PostgreSQL server that runs as a child of this process. It
// accepts all clients on 127.0.0.1 without a password. The superuser is postgres. Do
// not call two methods that change the state of the server at the same time.
type Postgres struct {
	config PostgresConfig
	dir    tempDir
	port   int
	server *child
	close  func() error
}

// StartPostgres creates a new database cluster, starts a server for it, and returns when
// it is ready. PostgreSQL refuses to run as root: if this process is root, the server
// runs as the user postgres, or nobody.
func StartPostgres(ctx context.Context, config PostgresConfig) (*Postgres, error) {
	p, err := startPostgres(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("servers: PostgreSQL: %w", err)
	}
	return p, nil
}

// DSN returns the URL of a database; "postgres" always exists.
func (p *Postgres) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", p.Address(), database)
}

// Address returns the host and port of the server.
func (p *Postgres) Address() string { return loopback(p.port) }

// Kill ends the server and all its sessions with SIGKILL, and returns when they have
// ended. Committed data still exists after [Postgres.Restart].
func (p *Postgres) Kill() { p.server.kill() }

// Stop shuts the server down (fast shutdown): it ends the sessions and writes committed
// data to the tables.
func (p *Postgres) Stop() { p.server.stop(syscall.SIGINT, p.config.Patience) }

// Restart starts the server again, on the same port and with the same data, and returns
// when it is ready. It stops a running server first.
func (p *Postgres) Restart(ctx context.Context) error {
	p.Stop()
	if err := p.start(ctx); err != nil {
		return fmt.Errorf("servers: PostgreSQL: restart: %w", err)
	}
	return nil
}

// Freeze stops the server and its sessions with SIGSTOP. Connections stay open, but the
// server does not answer.
func (p *Postgres) Freeze() { p.server.freeze() }

// Thaw lets the server continue after [Postgres.Freeze].
func (p *Postgres) Thaw() { p.server.thaw() }

// Close ends the server and removes its data. Further calls do nothing, and return the
// result of the first call.
func (p *Postgres) Close() error { return p.close() }

func (p *Postgres) discard() error {
	if p.server == nil { // it was never started
		return p.dir.remove()
	}
	// The data is not needed any more. SIGQUIT is used because SIGKILL would leave
	// shared memory behind.
	p.server.stop(syscall.SIGQUIT, 10*time.Second)
	removeSharedMemory(filepath.Join(p.data(), "postmaster.pid"))
	return p.dir.remove()
}

func (p *Postgres) data() string { return filepath.Join(p.dir.path, "data") }

func startPostgres(ctx context.Context, config PostgresConfig) (*Postgres, error) {
	if config.Patience <= 0 {
		config.Patience = 3 * time.Minute
	}
	config.Version = chosen(config.Version, PostgresVariable)
	var err error
	if config.Version == "" || config.BinDir != "" {
		config.BinDir, err = findPostgres(config.BinDir)
	} else {
		config.BinDir, err = postgresDir(config.Version)
	}
	if err != nil {
		return nil, err
	}
	dir, err := newTempDir("postgres")
	if err != nil {
		return nil, err
	}
	p := &Postgres{config: config, dir: dir}
	p.close = sync.OnceValue(p.discard)
	if err = p.initialise(ctx); err == nil {
		err = p.startOnFreePort(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// findPostgres returns the directory of PostgreSQL's commands. This is binDir, if
// binDir is not "". Otherwise it is the directory in PATH, or the directory of the
// newest installed version if PATH contains no PostgreSQL.
func findPostgres(binDir string) (string, error) {
	return findDir(binDir, []string{
		"$PATH",
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
	}, "postgres", "initdb", "pg_basebackup")
}

func (p *Postgres) initialise(ctx context.Context, args ...string) error {
	locale := "C.UTF-8"
	if runtime.GOOS != "linux" {
		locale = "C" // the only locale that exists everywhere else
	}
	args = append(args, "-D", p.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale="+locale, "--no-sync")
	return p.Run(ctx, "initdb", args...)
}

// Run runs one of the programs of the server's version, such as pg_dump, in the server's
// directory, and waits until it has ended.
func (p *Postgres) Run(ctx context.Context, program string, args ...string) error {
	command, err := p.command(program, args...)
	if err != nil {
		return err
	}
	child, err := startChild(command, filepath.Join(p.dir.path, program+".log"), syscall.SIGKILL)
	if err != nil {
		return err
	}
	select {
	case <-child.gone:
	case <-ctx.Done():
		child.kill()
		return fmt.Errorf("%s: %w", program, context.Cause(ctx))
	}
	if !child.cmd.ProcessState.Success() {
		return child.failure(program + ": " + child.cmd.ProcessState.String())
	}
	return nil
}

func (p *Postgres) startOnFreePort(ctx context.Context) (err error) {
	for range 3 { // another process may take the port meanwhile
		if p.port, err = freePort(); err != nil {
			return err
		}
		if err = p.start(ctx); err == nil || ctx.Err() != nil || !collided(err, p.port) {
			return err
		}
	}
	return err
}

func (p *Postgres) start(ctx context.Context) error {
	args := []string{"-D", p.data()}
	for _, setting := range slices.Concat([]string{
		"listen_addresses=127.0.0.1",
		fmt.Sprintf("port=%d", p.port),
		"unix_socket_directories=",        // none, because the path of a socket must be short
		"dynamic_shared_memory_type=mmap", // files in the data directory, so none are left after a server was killed
		"max_connections=500",
	}, p.config.Settings) {
		args = append(args, "-c", setting)
	}
	command, err := p.command("postgres", args...)
	if err != nil {
		return err
	}
	server, err := startChild(command, filepath.Join(p.dir.path, "postgres.log"), syscall.SIGQUIT)
	if err != nil {
		return err
	}
	p.server = server
	err = await(ctx, server, "PostgreSQL", p.config.Patience, func(ctx context.Context) error {
		data, err := askPostgres(ctx, p.DSN("postgres"), "SHOW data_directory")
		if err == nil && data != p.data() {
			err = errors.New("another server listens on the port")
		}
		return err
	})
	if err != nil {
		server.kill()
	}
	return err
}

// command returns a command that runs a binary in the server's directory, as a user
// that PostgreSQL accepts.
func (p *Postgres) command(name string, args ...string) (*exec.Cmd, error) {
	command := exec.Command(filepath.Join(p.config.BinDir, name), args...)
	command.Dir = p.dir.path
	command.Env = environmentWithout("PG")
	credential, err := unprivileged()
	if err != nil || credential == nil {
		return command, err
	}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	return command, os.Chown(p.dir.path, int(credential.Uid), int(credential.Gid))
}

// environmentWithout returns the environment of this process without the variables that
// begin with one of the prefixes, because they are meant for other servers.
func environmentWithout(prefixes ...string) []string {
	return slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(variable, prefix) })
	})
}

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
