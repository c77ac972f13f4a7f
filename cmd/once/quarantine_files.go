package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/poison"
)

// read returns the content of a file, or of standard input for "-".
func (a *app) read(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(a.stdin)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, usageError{err}
	}
	return content, nil
}

// exportJSON is the JSON output of the commands named "export" if they write to a file.
type exportJSON struct {
	Exported int    `json:"exported"`
	File     string `json:"file"`
}

// export calls the function write with a new file. If the parameter file is "", it
// calls write with standard output.
func (a *app) export(file string, write func(w io.Writer) (int, error)) (err error) {
	if file == "" {
		if a.settings.json {
			return usagef("--json needs --file: without it the exported lines are the output")
		}
		_, err := write(a.stdout)
		return err
	}
	// The file must not exist, so that an export cannot replace another export.
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return usageError{err}
	}
	n, err := write(out)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("%s has %s and is not complete: %w", file, counted(n, "message", "messages"), err)
	}
	return a.print(exportJSON{n, file}, fmt.Sprintf("Exported %s to %s.\n", counted(n, "message", "messages"), file))
}

func (a *app) quarantineExportCommand() *cobra.Command {
	var (
		filter poison.Filter
		file   string
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write entries as JSON lines, with their messages",
		Long: `Write entries as JSON lines, with their messages: protect the file as you protect the
messages. Without filters all entries are written.`,
		Args: noArgs,
		RunE: a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			return a.export(file, func(w io.Writer) (int, error) { return q.Export(ctx, filter, w) })
		}),
	}
	addQuarantineFilter(cmd, &filter)
	cmd.Flags().Var(atLeast(&filter.Limit, 1), "limit", "largest number of entries")
	cmd.Flags().StringVar(&file, "file", "", "new file to write (default: standard output)")
	return cmd
}

// importJSON is the JSON output of "once quarantine import".
type importJSON struct {
	Imported int `json:"imported"`
	Known    int `json:"known"`
}

func (a *app) quarantineImportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Read the output of export into this quarantine; known entries stay as they are",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%s needs one file, or - for standard input", cmd.CommandPath())
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		input, err := a.read(args[0])
		if err != nil {
			return err
		}
		return a.withQuarantine(&poison.Config{}, func(ctx context.Context, q *poison.Quarantine, _ []string) error {
			who, err := a.poisonAct()
			if err != nil {
				return err
			}
			var out importJSON
			out.Imported, out.Known, err = q.Import(ctx, who, bytes.NewReader(input))
			if err != nil {
				return err
			}
			return a.print(out, fmt.Sprintf("Imported %s; %d were known.\n", counted(out.Imported, "message", "messages"), out.Known))
		})(cmd, args)
	}
	cmd.Flags().StringVar(&a.settings.why, "why", "", "the reason, for the audit log")
	return cmd
}
