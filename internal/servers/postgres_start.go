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
	"strings"
	"sync"
	"syscall"
	"time"
)

func startPostgres(ctx context.Context, config PostgresConfig) (*Postgres, error) {
	if config.Patience <= 0 {
		config.Patience = 3 * time.Minute
	}
	var err error
	if config.BinDir, err = findPostgres(config.BinDir); err != nil {
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
	}, "postgres", "initdb")
}

func (p *Postgres) initialise(ctx context.Context) error {
	locale := "C.UTF-8"
	if runtime.GOOS != "linux" {
		locale = "C" // the only locale that exists everywhere else
	}
	command, err := p.command("initdb", "-D", p.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale="+locale, "--no-sync")
	if err != nil {
		return err
	}
	initdb, err := startChild(command, filepath.Join(p.dir.path, "initdb.log"), syscall.SIGKILL)
	if err != nil {
		return err
	}
	select {
	case <-initdb.gone:
	case <-ctx.Done():
		initdb.kill()
		return fmt.Errorf("initdb: %w", context.Cause(ctx))
	}
	if !initdb.cmd.ProcessState.Success() {
		return initdb.failure("initdb: " + initdb.cmd.ProcessState.String())
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
		"max_connections=200",
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
