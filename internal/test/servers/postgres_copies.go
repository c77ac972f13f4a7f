package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
)

// Backup takes a base backup of p. The returned server is not started, see
// [Postgres.Recover].
func (p *Postgres) Backup(ctx context.Context) (*Postgres, error) {
	s, err := p.backup(ctx)
	if err != nil {
		err = fmt.Errorf("servers: PostgreSQL: backup: %w", err)
		if s != nil {
			err = errors.Join(err, s.Close())
		}
		return nil, err
	}
	return s, nil
}

// Recover starts the server of a backup, lets it repeat what the server that was backed
// up did until the restore point, and returns when it accepts writes. The server that was
// backed up must still have its WAL: set wal_keep_size.
func (p *Postgres) Recover(ctx context.Context, from *Postgres, point string) error {
	p.config.Settings = append(slices.Clip(p.config.Settings),
		fmt.Sprintf("restore_command=cp %s/%%f %%p", filepath.Join(from.data(), "pg_wal")),
		"recovery_target_name="+point, "recovery_target_action=promote")
	err := os.WriteFile(filepath.Join(p.data(), "recovery.signal"), nil, 0o644) // the server has another user
	if err == nil {
		err = p.startOnFreePort(ctx)
	}
	if err == nil {
		err = p.awaitWrites(ctx)
	}
	if err != nil {
		return fmt.Errorf("servers: PostgreSQL: recover: %w", err)
	}
	return nil
}

// Upgrade stops p, and returns a server of a newer version with its data, made by
// pg_upgrade. It returns an [ErrNotInstalled] if this machine does not have the version,
// if p has it already, or if the release is older than that of p, and does not know its
// catalogs.
func (p *Postgres) Upgrade(ctx context.Context, version string) (*Postgres, error) {
	s, err := p.upgrade(ctx, version)
	if err != nil {
		err = fmt.Errorf("servers: PostgreSQL: upgrade: %w", err)
		if s != nil {
			err = errors.Join(err, s.Close())
		}
		return nil, err
	}
	return s, nil
}

func (p *Postgres) upgrade(ctx context.Context, newer string) (*Postgres, error) {
	s := &Postgres{config: p.config}
	s.config.Version = newer
	var err error
	if s.config.BinDir, err = postgresDir(newer); err != nil {
		return nil, err
	}
	if version(s.config.BinDir) <= version(p.config.BinDir) {
		return nil, fmt.Errorf("%s is no newer version: one is %w", newer, ErrNotInstalled)
	}
	if s.dir, err = newTempDir("postgres"); err != nil {
		return nil, err
	}
	s.close = sync.OnceValue(s.discard)
	var args []string
	if newer >= "18" { // before, clusters had no checksums by default
		args = append(args, "--no-data-checksums")
	}
	if err := s.initialise(ctx, args...); err != nil {
		return s, err
	}
	p.Stop()
	err = s.Run(ctx, "pg_upgrade", "-U", "postgres", "-b", p.config.BinDir, "-B", s.config.BinDir, "-d", p.data(), "-D", s.data())
	if err != nil {
		return s, s.explainUpgrade(err)
	}
	return s, s.startOnFreePort(ctx)
}

var refused = regexp.MustCompile(`(?m)^.*ERROR: .*$`)

// explainUpgrade adds the server's own error, which is in a log of the new cluster.
func (p *Postgres) explainUpgrade(err error) error {
	logs, _ := filepath.Glob(filepath.Join(p.data(), "pg_upgrade_output.d", "*", "log", "*.log"))
	for _, name := range logs {
		text, _ := os.ReadFile(name)
		why := refused.Find(text)
		if bytes.Contains(why, []byte("unrecognized parameter")) {
			return fmt.Errorf("%s: a later release is %w", why, ErrNotInstalled)
		}
		if why != nil {
			return fmt.Errorf("%w\n%s", err, why)
		}
	}
	return err
}
