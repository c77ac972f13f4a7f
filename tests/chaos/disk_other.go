//go:build !linux

package main

import (
	"context"
	"database/sql"
	"errors"
)

// disk is not supported on this system.
type disk struct{}

func mountDisk(context.Context, *sql.DB) (*disk, error) { return nil, nil } //nolint:nilnil // only Linux mounts a disk
func (d *disk) move(context.Context, *sql.DB) error     { return nil }
func (d *disk) fill() error                             { return errors.ErrUnsupported }
func (d *disk) free() error                             { return nil }
func (d *disk) unmount() error                          { return nil }
