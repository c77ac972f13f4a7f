package servers

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"time"
)

// PostgresConfig says how a private PostgreSQL is started.
type PostgresConfig struct {
	// BinDir holds postgres and initdb. Defaults to that of PATH, then to the
	// newest where packages for Debian, Red Hat and Homebrew put it.
	BinDir string

	// Settings are lines of postgresql.conf, as "max_connections=20". Defaults
	// to PostgreSQL's own, with 200 connections.
	Settings []string

	// Patience is how long it may take to become ready. Defaults to 1 minute.
	Patience time.Duration
}

// Postgres is a private PostgreSQL server, a child of this process. It trusts
// everybody on 127.0.0.1; the superuser is postgres. Methods that change its
// state must not be called at the same time.
type Postgres struct {
	config PostgresConfig
	dir    tempDir
	port   int
	server *child
	close  func() error
}

// StartPostgres makes a new database cluster and starts a server for it. It is
// ready when StartPostgres returns. PostgreSQL refuses to run as root: for
// root it runs as the user postgres, or nobody.
func StartPostgres(ctx context.Context, config PostgresConfig) (*Postgres, error) {
	p, err := startPostgres(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("servers: PostgreSQL: %w", err)
	}
	return p, nil
}

// DSN returns the URL of one of its databases; "postgres" always exists.
func (p *Postgres) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", p.Address(), database)
}

// Address returns the host and port it listens on.
func (p *Postgres) Address() string { return loopback(p.port) }

// Kill ends the server and all its sessions with SIGKILL, and returns when
// they are gone. What was committed is there after [Postgres.Restart].
func (p *Postgres) Kill() { p.server.kill() }

// Stop ends the server as its operator would: sessions are cut off, and what
// was committed is written to the tables.
func (p *Postgres) Stop() { p.server.stop(syscall.SIGINT, p.config.Patience) }

// Restart starts the server again, on the same port and with the same data,
// and returns when it is ready. One that still runs is stopped first.
func (p *Postgres) Restart(ctx context.Context) error {
	p.Stop()
	if err := p.start(ctx); err != nil {
		return fmt.Errorf("servers: PostgreSQL: restart: %w", err)
	}
	return nil
}

// Freeze stops the server and its sessions where they are: connections stay
// open, nothing answers.
func (p *Postgres) Freeze() { p.server.freeze() }

// Thaw lets it go on after [Postgres.Freeze].
func (p *Postgres) Thaw() { p.server.thaw() }

// Close ends the server and removes its data. Further calls return the same.
func (p *Postgres) Close() error { return p.close() }

func (p *Postgres) discard() error {
	// Nothing needs to be written any more, but its shared memory has to go.
	p.server.stop(syscall.SIGQUIT, 10*time.Second)
	removeSharedMemory(filepath.Join(p.data(), "postmaster.pid"))
	return p.dir.remove()
}

func (p *Postgres) data() string { return filepath.Join(p.dir.path, "data") }
