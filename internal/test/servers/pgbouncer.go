package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// PgbouncerConfig configures a private pgbouncer.
type PgbouncerConfig struct {
	// Server is the host and port of the PostgreSQL server. Required.
	Server string

	// User is the user of all connections to the server, no matter which user a client
	// names. Defaults to postgres.
	User string

	// Settings are lines of pgbouncer.ini, for example "default_pool_size = 3". By default,
	// pool_mode is transaction, and all other settings have pgbouncer's defaults.
	Settings []string

	// Patience is how long the start may take. Defaults to 3 minutes.
	Patience time.Duration
}

// Pgbouncer is a private connection pooler that runs as a child of this process. It
// accepts all clients without a password.
type Pgbouncer struct {
	config PgbouncerConfig
	dir    tempDir
	port   int
	child  *child
	close  func() error
}

// StartPgbouncer starts a pgbouncer and returns when it is ready. pgbouncer refuses to
// run as root. If this process is root, pgbouncer runs as the user postgres, or nobody.
func StartPgbouncer(ctx context.Context, config PgbouncerConfig) (*Pgbouncer, error) {
	p, err := startPgbouncer(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("servers: pgbouncer: %w", err)
	}
	return p, nil
}

// DSN returns the URL of a database of the PostgreSQL server, through the pgbouncer.
func (p *Pgbouncer) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", loopback(p.port), database)
}

// Lead makes the pgbouncer use another PostgreSQL server, named by its host and port, as
// an operator does after a failover. It ends each connection to the former server when no
// transaction uses it.
func (p *Pgbouncer) Lead(server string) error {
	p.config.Server = server
	if _, err := p.configure(); err != nil {
		return fmt.Errorf("servers: pgbouncer: lead: %w", err)
	}
	return p.child.cmd.Process.Signal(syscall.SIGHUP)
}

// Close ends the pgbouncer and removes its files. Further calls do nothing, and return
// the result of the first call.
func (p *Pgbouncer) Close() error { return p.close() }

func startPgbouncer(ctx context.Context, config PgbouncerConfig) (*Pgbouncer, error) {
	if config.Patience <= 0 {
		config.Patience = 3 * time.Minute
	}
	if config.User == "" {
		config.User = "postgres"
	}
	binDir, err := findDir("", []string{"$PATH", "/usr/sbin", "/opt/homebrew/bin"}, "pgbouncer")
	if err != nil {
		return nil, err
	}
	dir, err := newTempDir("pgbouncer")
	if err != nil {
		return nil, err
	}
	p := &Pgbouncer{config: config, dir: dir}
	p.close = sync.OnceValue(func() error {
		p.child.kill()
		return p.dir.remove()
	})
	for range 3 { // another process may take the port meanwhile
		if p.port, err = freePort(); err == nil {
			err = p.start(ctx, filepath.Join(binDir, "pgbouncer"))
		}
		if err == nil {
			return p, nil
		}
		if ctx.Err() != nil || !collided(err, p.port) {
			break
		}
	}
	return nil, errors.Join(err, p.Close())
}

// configure writes pgbouncer.ini, and returns its path.
func (p *Pgbouncer) configure() (ini string, err error) {
	host, port, err := net.SplitHostPort(p.config.Server)
	if err != nil {
		return "", err
	}
	settings := append([]string{
		"[databases]",
		fmt.Sprintf("* = host=%s port=%s user=%s", host, port, p.config.User),
		"[pgbouncer]",
		"listen_addr = 127.0.0.1",
		fmt.Sprintf("listen_port = %d", p.port),
		"unix_socket_dir =",
		"auth_type = any",
		"pool_mode = transaction",
		"ignore_startup_parameters = extra_float_digits",
	}, p.config.Settings...)
	ini = filepath.Join(p.dir.path, "pgbouncer.ini")
	return ini, os.WriteFile(ini, []byte(lines(settings)), 0o600)
}

func (p *Pgbouncer) start(ctx context.Context, binary string) error {
	ini, err := p.configure()
	if err != nil {
		return err
	}
	command := exec.Command(binary, ini)
	command.Dir = p.dir.path
	credential, err := unprivileged()
	if err != nil {
		return err
	}
	if credential != nil {
		command.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		for _, name := range []string{p.dir.path, ini} {
			if err := os.Chown(name, int(credential.Uid), int(credential.Gid)); err != nil {
				return err
			}
		}
	}
	if p.child, err = startChild(command, filepath.Join(p.dir.path, "pgbouncer.log"), syscall.SIGKILL); err != nil {
		return err
	}
	err = await(ctx, p.child, "pgbouncer", p.config.Patience, func(ctx context.Context) error {
		_, err := askPostgres(ctx, p.DSN("postgres"), "SELECT 1")
		return err
	})
	if err != nil {
		p.child.kill()
	}
	return err
}
