package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/archive"
	"github.com/watermill-once/once/operate/dead"
)

func (a *app) archiveCommand() *cobra.Command {
	return group("archive", "Keep what the tables forget, as files", a.archiveSentCommand(), a.archiveHandledCommand())
}

type archiveOptions struct {
	rows int
	wait time.Duration
}

// The argument of cmd is a directory, in which work writes new files.
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

// Nothing is printed if the command failed before the first file.
func (a *app) printArchived(value any, archived, files int, one, many string, err error) error {
	if err != nil && archived == 0 {
		return err
	}
	text := fmt.Sprintf("Archived %s to %s.\n", counted(archived, one, many), counted(files, "file", "files"))
	return errors.Join(err, a.print(value, text))
}

type archiveSentJSON struct {
	Archived int      `json:"archived"`
	Files    []string `json:"files"`   // files that this call has written
	LastID   int64    `json:"last_id"` // last ID in the archive
}

const archiveSentHelp = `Append the rows of the sent log that are new to the files in a directory, as JSON lines
with the messages: protect the files as you protect the messages. Call it from cron more
often than --keep-sent of the forwarder, which deletes old rows.

The directory is its own record: a file is written whole, or not at all, and the last
line of the last file says where the next call continues. So a call that was killed is
repeated, and no row is written twice or left out. Move old files away, but keep the
last one. The rows of transactions that still run are waited for.`

func (a *app) archiveSentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sent DIRECTORY",
		Short: "Append the new rows of the sent log to the files in a directory",
		Long:  archiveSentHelp,
	}
	return a.archiveCommandOf(cmd, func(ctx context.Context, db database, dir string, o archiveOptions) error {
		d, err := openSentArchive(dir)
		if err != nil {
			return err
		}
		s, err := dead.NewSentLog(db.DB, operate.Config{Schema: db.tables})
		if err != nil {
			return err
		}
		out, err := d.append(ctx, s, o)
		return a.printArchived(out, out.Archived, len(out.Files), "message", "messages", err)
	})
}

// The number of a file of the sent log is the ID of its first row.
type sentArchive struct {
	*archiveFiles

	lastID int64 // ID of the last row
}

func openSentArchive(dir string) (*sentArchive, error) {
	files, err := openArchive(dir, "sent")
	if err != nil {
		return nil, err
	}
	d := &sentArchive{archiveFiles: files}
	return d, d.parse()
}

func (d *sentArchive) parse() error {
	if d.newest == "" {
		return nil
	}
	id, err := rowID(d.last)
	if err != nil {
		return d.damaged(err)
	}
	d.lastID = id
	return nil
}

func rowID(line []byte) (int64, error) {
	var row struct {
		ID int64 `json:"id"`
	}
	if err := json.Unmarshal(line, &row); err != nil {
		return 0, err
	}
	if row.ID < 1 {
		return 0, errors.New("the last line has no id")
	}
	return row.ID, nil
}

func (d *sentArchive) append(ctx context.Context, s *dead.SentLog, o archiveOptions) (archiveSentJSON, error) {
	out := archiveSentJSON{Files: []string{}, LastID: d.lastID}
	until, err := settled(ctx, o.wait, s.SettledID)
	if err != nil {
		return out, err
	}
	for d.lastID < until {
		name, n, err := d.write(func(w io.Writer) (int, int64, error) {
			first := firstLine{w: w}
			n, err := s.Export(ctx, operate.Filter{AfterID: d.lastID, UntilID: until, Limit: o.rows}, &first)
			if err != nil || n == 0 {
				return n, 0, err
			}
			id, err := rowID(first.text)
			return n, id, err
		})
		if err == nil && n > 0 {
			err = d.parse()
		}
		if err != nil || n == 0 {
			return out, err
		}
		out.Archived += n
		out.Files = append(out.Files, name)
		out.LastID = d.lastID
	}
	return out, nil
}

// find waits until the transactions that are running now have ended.
func settled[T any](ctx context.Context, timeout time.Duration, find func(ctx context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return find(limited)
}

// firstLine passes everything on, and keeps the first line.
type firstLine struct {
	w        io.Writer
	text     []byte
	complete bool
}

func (f *firstLine) Write(p []byte) (int, error) {
	if !f.complete {
		f.text = append(f.text, p...)
		f.text, _, f.complete = bytes.Cut(f.text, []byte("\n"))
	}
	return f.w.Write(p)
}

type archiveHandledJSON struct {
	Archived int       `json:"archived"`
	Files    []string  `json:"files"` // files that this call has written
	Until    time.Time `json:"until"` // the archive contains all messages that were handled before this time
}

const archiveHandledHelp = `Append the rows of the inbox that are new to the files in a directory, as JSON lines:
which consumer has handled which message, and when. A row has no content of the message.
Call it from cron more often than the retention of the inbox, which deletes old rows.

The directory is its own record: a file is written whole, or not at all, and the last
line of the last file says where the next call continues. So a call that was killed is
repeated, and no row is written twice or left out. Move old files away, but keep the
last one.

The call ends at the rows of one minute ago. A transaction that began before and still
runs may add such a row, so the call waits for it: for --wait, and then it fails.`

func (a *app) archiveHandledCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "handled DIRECTORY",
		Short: "Append the new rows of the inbox to the files in a directory",
		Long:  archiveHandledHelp,
	}
	return a.archiveCommandOf(cmd, func(ctx context.Context, db database, dir string, o archiveOptions) error {
		d, err := openHandledArchive(dir)
		if err != nil {
			return err
		}
		log, err := handledLog(db)
		if err != nil {
			return err
		}
		out, err := d.append(ctx, log, o)
		return a.printArchived(out, out.Archived, len(out.Files), "row", "rows", err)
	})
}

func handledLog(db database) (*archive.Log, error) {
	return archive.New(db.DB, db.tables)
}

// The files of the inbox are numbered from 1.
type handledArchive struct {
	*archiveFiles

	number int64 // number of the last file
	after  archive.Cursor
}

func openHandledArchive(dir string) (*handledArchive, error) {
	files, err := openArchive(dir, "handled")
	if err != nil {
		return nil, err
	}
	d := &handledArchive{archiveFiles: files}
	return d, d.parse()
}

func (d *handledArchive) parse() (err error) {
	if d.newest == "" {
		return nil
	}
	if d.number, err = d.fileNumber(); err == nil {
		d.after, err = archive.CursorOf(d.last)
	}
	if err != nil {
		return d.damaged(err)
	}
	return nil
}

func (d *handledArchive) append(ctx context.Context, log *archive.Log, o archiveOptions) (archiveHandledJSON, error) {
	out := archiveHandledJSON{Files: []string{}, Until: d.after.HandledAt}
	until, err := settled(ctx, o.wait, log.Settled)
	if err != nil {
		return out, err
	}
	for {
		name, n, err := d.write(func(w io.Writer) (int, int64, error) {
			n, _, err := log.Export(ctx, archive.Filter{After: d.after, Until: until, Limit: o.rows}, w)
			return n, d.number + 1, err
		})
		if err == nil && n > 0 {
			err = d.parse()
		}
		if err != nil {
			return out, err
		}
		if n == 0 {
			out.Until = until
			return out, nil
		}
		out.Archived += n
		out.Files = append(out.Files, name)
		out.Until = d.after.HandledAt
	}
}
