package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/handled"
)

// archiveHandledJSON is the JSON output of "once archive handled".
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

func handledLog(db database) (*handled.Log, error) {
	return handled.New(db.DB, handled.Config{Schema: db.tables})
}

// handledArchive is the archive of the inbox. Its files are numbered from 1.
type handledArchive struct {
	*archive

	number int64 // number of the last file
	after  handled.Cursor
}

func openHandledArchive(dir string) (*handledArchive, error) {
	files, err := openArchive(dir, "handled")
	if err != nil {
		return nil, err
	}
	d := &handledArchive{archive: files}
	return d, d.parse()
}

// parse reads the position in the inbox from the last line, and the number of the last
// file from its name.
func (d *handledArchive) parse() (err error) {
	if d.newest == "" {
		return nil
	}
	if d.number, err = d.fileNumber(); err == nil {
		d.after, err = handled.CursorOf(d.last)
	}
	if err != nil {
		return d.damaged(err)
	}
	return nil
}

// append writes files until the archive contains all rows that are older than the time
// that log.Settled returns.
func (d *handledArchive) append(ctx context.Context, log *handled.Log, o archiveOptions) (archiveHandledJSON, error) {
	out := archiveHandledJSON{Files: []string{}, Until: d.after.HandledAt}
	until, err := settled(ctx, o.wait, log.Settled)
	if err != nil {
		return out, err
	}
	for {
		name, n, err := d.write(func(w io.Writer) (int, int64, error) {
			n, _, err := log.Export(ctx, handled.Filter{After: d.after, Until: until, Limit: o.rows}, w)
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
