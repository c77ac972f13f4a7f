package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) archiveCommand() *cobra.Command {
	return group("archive", "Keep what the tables forget, as files", a.archiveSentCommand(), a.archiveHandledCommand())
}

// archiveOptions are the flags of "once archive sent" and "once archive handled".
type archiveOptions struct {
	rows int
	wait time.Duration
}

// archiveCommandOf adds the argument and the flags to cmd, and returns cmd. The argument
// is a directory, in which the function work writes new files.
func (a *app) archiveCommandOf(
	cmd *cobra.Command, work func(ctx context.Context, db database, dir string, o archiveOptions) error,
) *cobra.Command {
	o := archiveOptions{rows: 100_000, wait: time.Minute}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return usagef("%s needs one directory", cmd.CommandPath())
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.withTables(func(ctx context.Context, db database, _ []string) error { return work(ctx, db, args[0], o) })(cmd, args)
	}
	cmd.Flags().Var(atLeast(&o.rows, 1), "rows", "most rows of a file")
	cmd.Flags().Var(duration(&o.wait), "wait", "how long to wait for transactions that still run")
	return cmd
}

// printArchived prints how many rows were archived to how many files, unless the command
// failed before the first file. It returns the error err of the command.
func (a *app) printArchived(value any, archived, files int, one, many string, err error) error {
	if err != nil && archived == 0 {
		return err
	}
	text := fmt.Sprintf("Archived %s to %s.\n", counted(archived, one, many), counted(files, "file", "files"))
	return errors.Join(err, a.print(value, text))
}
