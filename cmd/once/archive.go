package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/deadletter"
)

// archiveJSON is the output of archive sent.
type archiveJSON struct {
	Archived int      `json:"archived"`
	Files    []string `json:"files"`   // that this call has written
	LastID   int64    `json:"last_id"` // of the archive
}

func (a *app) archiveCommand() *cobra.Command {
	return group("archive", "Keep what the tables forget, as files", a.archiveSentCommand())
}

const archiveHelp = `Append the rows of the sent log that are new to the files in a directory, as JSON lines
with the messages: protect the files as you protect the messages. Call it from cron more
often than --keep-sent of the forwarder, which deletes old rows.

The directory is its own record: a file is written whole, or not at all, and the last
line of the last file says where the next call continues. So a call that was killed is
repeated, and no row is written twice or left out. Move old files away, but keep the
last one. The rows of transactions that still run are waited for.`

func (a *app) archiveSentCommand() *cobra.Command {
	rows, wait := 100_000, time.Minute
	cmd := &cobra.Command{
		Use:   "sent DIRECTORY",
		Short: "Append the new rows of the sent log to the files in a directory",
		Long:  archiveHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef("%s needs one directory", cmd.CommandPath())
			}
			return nil
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := openArchive(args[0])
		if err != nil {
			return err
		}
		return a.withSent(&deadletter.Config{}, func(ctx context.Context, s *deadletter.SentLog, _ []string) error {
			out, err := dir.append(ctx, s, rows, wait)
			if err == nil || out.Archived > 0 {
				text := fmt.Sprintf("Archived %s to %s.\n", counted(out.Archived, "message", "messages"), counted(len(out.Files), "file", "files"))
				err = errors.Join(err, a.print(out, text))
			}
			return err
		})(cmd, args)
	}
	cmd.Flags().Var(atLeast(&rows, 1), "rows", "most rows of a file")
	cmd.Flags().Var(duration(&wait), "wait", "how long to wait for transactions that still run")
	return cmd
}
