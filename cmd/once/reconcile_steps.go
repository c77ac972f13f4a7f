package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/reconcile"
)

func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usagef("%s needs one file", cmd.CommandPath())
	}
	return nil
}

// readStep reads a question or an answer from a file. If name is "-", it reads from
// standard input.
func (a *app) readStep(name string) (*reconcile.File, error) {
	if name == "-" {
		return reconcile.ReadFile(a.stdin)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, usageError{err}
	}
	defer file.Close()
	f, err := reconcile.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// writeStep writes a question or an answer to a file. If name is "", it writes to
// standard output.
func (a *app) writeStep(f *reconcile.File, name string) error {
	if name == "" {
		_, err := f.WriteTo(a.stdout)
		return err
	}
	n, err := writeFile(name, f)
	if err != nil {
		return err
	}
	return a.print(reconcileFileJSON{name, n}, fmt.Sprintf("Wrote %s of %s: %s to %s, %d bytes.\n",
		f.Name(), strings.Join(f.Topics(), ", "), at(f.From()), at(f.Until()), n))
}

// writeFile writes the whole file or nothing. It writes to a temporary file and then
// renames it. So if the process dies, an earlier file with this name remains unchanged.
func writeFile(name string, from io.WriterTo) (n int64, err error) {
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	n, err = from.WriteTo(file)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return n, err
	}
	return n, os.Rename(file.Name(), name)
}
