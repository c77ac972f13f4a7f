package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/watermill-once/once/deadletter"
)

// archiveSentJSON is the JSON output of "once archive sent".
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
		s, err := deadletter.NewSentLog(db.DB, deadletter.Config{Schema: db.tables})
		if err != nil {
			return err
		}
		out, err := d.append(ctx, s, o)
		return a.printArchived(out, out.Archived, len(out.Files), "message", "messages", err)
	})
}

// sentArchive is the archive of the sent log. The number of a file is the ID of its
// first row.
type sentArchive struct {
	*archive

	lastID int64 // ID of the last row
}

func openSentArchive(dir string) (*sentArchive, error) {
	files, err := openArchive(dir, "sent")
	if err != nil {
		return nil, err
	}
	d := &sentArchive{archive: files}
	return d, d.parse()
}

// parse reads the ID in the last line.
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

// append writes files until the archive contains all rows up to the ID that the method
// SettledID of s returns.
func (d *sentArchive) append(ctx context.Context, s *deadletter.SentLog, o archiveOptions) (archiveSentJSON, error) {
	out := archiveSentJSON{Files: []string{}, LastID: d.lastID}
	until, err := settled(ctx, o.wait, s.SettledID)
	if err != nil {
		return out, err
	}
	for d.lastID < until {
		name, n, err := d.write(func(w io.Writer) (int, int64, error) {
			first := firstLine{w: w}
			n, err := s.Export(ctx, deadletter.Filter{AfterID: d.lastID, UntilID: until, Limit: o.rows}, &first)
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

// settled calls the function find with a timeout, because find waits until the
// transactions that are running now have ended.
func settled[T any](ctx context.Context, timeout time.Duration, find func(ctx context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return find(limited)
}

// firstLine is a writer that passes everything on to w, and keeps the first line.
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
