package cmdline

import (
	"errors"
	"io/fs"
	"os"
)

// Writable says why a file cannot be written, before there is what is to be
// written into it. What is there stays as it is.
func Writable(path string) error {
	existing, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		return existing.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	created, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(created.Close(), os.Remove(path))
}
