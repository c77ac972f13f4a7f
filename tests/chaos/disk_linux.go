package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// disk is a small file system in memory. It contains the outbox and the table hoard. A
// nil *disk means that no file system can be mounted here.
type disk struct{ dir string }

const diskSize = "size=192m"

// mountDisk mounts the disk. If the process is not allowed to mount a file system,
// mountDisk returns nil and no error.
func mountDisk(ctx context.Context, db *sql.DB) (*disk, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // the doc comment explains it
	}
	var data string
	if err := db.QueryRowContext(ctx, `SHOW data_directory`).Scan(&data); err != nil {
		return nil, err
	}
	info, err := os.Stat(data)
	if err != nil {
		return nil, err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("the owner of the database's files is not known")
	}
	dir, err := os.MkdirTemp("", "once-chaos-disk-")
	if err != nil {
		return nil, err
	}
	if syscall.Mount("tmpfs", dir, "tmpfs", 0, diskSize) != nil {
		return nil, os.Remove(dir) // mounting is not allowed
	}
	d := &disk{dir: dir}
	if err := d.prepare(int(owner.Uid), int(owner.Gid)); err != nil {
		return nil, errors.Join(err, d.unmount())
	}
	return d, nil
}

func (d *disk) prepare(uid, gid int) error {
	if err := os.Mkdir(d.tables(), 0o700); err != nil {
		return err
	}
	return errors.Join(os.Chown(d.tables(), uid, gid), os.Chmod(d.dir, 0o755))
}

func (d *disk) tables() string { return filepath.Join(d.dir, "tables") }

func (d *disk) move(ctx context.Context, db *sql.DB) error {
	if d == nil {
		return nil
	}
	for _, query := range []string{
		`CREATE TABLESPACE small LOCATION '` + d.tables() + `'`,
		`ALTER TABLE once_outbox SET TABLESPACE small`,
		`ALTER INDEX once_outbox_pkey SET TABLESPACE small`,
		`ALTER TABLE hoard SET TABLESPACE small`,
	} {
		if _, err := db.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) fill() error {
	file, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err = file.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/16]
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) free() error { return os.Remove(d.filler()) }

func (d *disk) filler() string { return filepath.Join(d.dir, "filler") }

func (d *disk) unmount() error {
	if d == nil {
		return nil
	}
	return errors.Join(syscall.Unmount(d.dir, syscall.MNT_DETACH), os.Remove(d.dir))
}
