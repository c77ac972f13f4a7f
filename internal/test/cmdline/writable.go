package cmdline

import (
	"errors"
	"io/fs"
	"os"
)

// Writable returns an error if the file cannot be written. Call it before long work
// whose result will be written to the file. It does not change an existing file.
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
