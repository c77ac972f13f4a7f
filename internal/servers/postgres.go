package servers

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"time"
)

// PostgresConfig configures a private PostgreSQL.
type PostgresConfig struct {
	// BinDir is the directory of postgres and initdb. Defaults to the directory in
	// PATH. If they are not in PATH, it defaults to the newest directory of the
	// packages for Debian, Red Hat and Homebrew.
	BinDir string

	// Settings are lines of postgresql.conf, for example "max_connections=20". By default,
	// max_connections is 200, and all other settings have PostgreSQL's defaults.
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
	// The data is not needed any more. SIGQUIT is used because SIGKILL would leave
	// shared memory behind.
	p.server.stop(syscall.SIGQUIT, 10*time.Second)
	removeSharedMemory(filepath.Join(p.data(), "postmaster.pid"))
	return p.dir.remove()
}

func (p *Postgres) data() string { return filepath.Join(p.dir.path, "data") }
