package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/watermill-once/once/examples/orders/service"
)

// onSQLite returns a part with two files, in the directory -data or in a temporary one.
// The bank and the mail provider have a separate file, because the service calls them
// inside a transaction, and an SQLite file has only one writer at a time.
func (a *app) onSQLite() ([]*part, error) {
	dir, err := a.directory()
	if err != nil {
		return nil, err
	}
	ours, err := service.SQLite(filepath.Join(dir, "orders.db"))
	if err != nil {
		return nil, err
	}
	theirs, err := service.SQLite(filepath.Join(dir, "outside.db"))
	return a.onOneDatabase(ours, theirs), err
}

func (a *app) directory() (string, error) {
	dir := a.options.data
	if dir == "" {
		temporary, err := os.MkdirTemp("", "orders-")
		if err != nil {
			return "", err
		}
		a.closeLater(func() error { return os.RemoveAll(temporary) })
		return temporary, nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("-data: %w", err)
	}
	return dir, nil
}
