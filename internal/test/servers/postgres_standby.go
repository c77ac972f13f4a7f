package servers

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// StartStandby starts a standby of p, a server that repeats what p commits, and returns when it
// accepts reads. If synchronous is set, each COMMIT of p waits until the standby has it on disk.
func (p *Postgres) StartStandby(ctx context.Context, synchronous bool) (*Postgres, error) {
	s, err := p.startStandby(ctx)
	if err == nil && synchronous {
		err = p.waitForStandby(ctx)
	}
	if err != nil {
		err = fmt.Errorf("servers: PostgreSQL: standby: %w", err)
		if s != nil {
			err = errors.Join(err, s.Close())
		}
		return nil, err
	}
	return s, nil
}

// Promote makes a standby a server of its own, and returns when it accepts writes.
func (p *Postgres) Promote(ctx context.Context) error {
	_, err := askPostgres(ctx, p.DSN("postgres"), "SELECT pg_promote(false)::text")
	if err == nil { // a standby without a primary looks for it for up to five seconds
		err = p.awaitWrites(ctx)
	}
	if err != nil {
		return fmt.Errorf("servers: PostgreSQL: promote: %w", err)
	}
	return nil
}

// Follow makes p, which may have ended in any way, a synchronous standby of primary. All data of p are
// replaced by a copy of the primary's. Its port stays the same.
func (p *Postgres) Follow(ctx context.Context, primary *Postgres) error {
	p.Kill()
	removeSharedMemory(filepath.Join(p.data(), "postmaster.pid"))
	err := os.RemoveAll(p.data())
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return p.copy(ctx, primary, "-R") }, p.start, primary.waitForStandby,
	} {
		if err == nil {
			err = step(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("servers: PostgreSQL: follow: %w", err)
	}
	return nil
}

func (p *Postgres) awaitWrites(ctx context.Context) error {
	return await(ctx, p.server, "the promoted standby", p.config.Patience, func(ctx context.Context) error {
		if standby, err := askPostgres(ctx, p.DSN("postgres"), "SELECT pg_is_in_recovery()::text"); err != nil || standby == "false" {
			return err
		}
		return errors.New("it is still a standby")
	})
}

func (p *Postgres) startStandby(ctx context.Context) (*Postgres, error) {
	s, err := p.backup(ctx, "-R")
	if err == nil {
		err = s.startOnFreePort(ctx)
	}
	return s, err
}

// backup takes a base backup of p. The new server is not started.
func (p *Postgres) backup(ctx context.Context, args ...string) (*Postgres, error) {
	dir, err := newTempDir("postgres")
	if err != nil {
		return nil, err
	}
	s := &Postgres{config: p.config, dir: dir}
	s.close = sync.OnceValue(s.discard)
	return s, s.copy(ctx, p, args...)
}

// copy copies the data of primary. With the argument -R of pg_basebackup, p starts as its standby.
func (p *Postgres) copy(ctx context.Context, primary *Postgres, args ...string) error {
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres application_name=standby", primary.port)
	return p.Run(ctx, "pg_basebackup", append(args, "-D", p.data(), "-d", from, "-X", "stream", "-c", "fast", "--no-sync")...)
}

// waitForStandby makes each COMMIT wait for the standby, and returns when it does.
func (p *Postgres) waitForStandby(ctx context.Context) error {
	dsn := p.DSN("postgres")
	if _, err := askPostgres(ctx, dsn, "ALTER SYSTEM SET synchronous_standby_names = 'standby'"); !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if _, err := askPostgres(ctx, dsn, "SELECT pg_reload_conf()::text"); err != nil {
		return err
	}
	return await(ctx, p.server, "a synchronous standby", p.config.Patience, func(ctx context.Context) error {
		_, err := askPostgres(ctx, dsn, "SELECT sync_state FROM pg_stat_replication WHERE sync_state = 'sync'")
		return err
	})
}
