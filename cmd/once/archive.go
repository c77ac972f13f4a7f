package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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

// archive is a directory with the archive of the sent log. A file has the name
// sent-FIRST.jsonl, and the rows from the ID FIRST on.
type archive struct {
	dir  string
	last int64 // the ID of the last row
}

const archivePattern = "sent-*.jsonl"

// openArchive finds the last row of the archive. It creates the directory if it does
// not exist.
func openArchive(dir string) (*archive, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, usageError{err}
	}
	files, err := filepath.Glob(filepath.Join(dir, archivePattern))
	if err != nil || len(files) == 0 {
		return &archive{dir: dir}, err
	}
	slices.Sort(files) // the numbers have the same length
	last, err := lastRow(files[len(files)-1])
	if err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): move it away to archive its rows again", files[len(files)-1], err)
	}
	return &archive{dir, last}, nil
}

// lastRow returns the ID in the last line of a file.
func lastRow(name string) (int64, error) {
	file, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	var last []byte
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if len(line) > 0 {
				return 0, errors.New("the last line has no end")
			}
			break
		}
		if err != nil {
			return 0, err
		}
		last = line
	}
	var row struct {
		ID int64 `json:"id"`
	}
	if err := json.Unmarshal(last, &row); err != nil {
		return 0, fmt.Errorf("the last line: %w", err)
	}
	if row.ID < 1 {
		return 0, errors.New("the last line has no id")
	}
	return row.ID, nil
}

// append writes files until the archive has every settled row.
func (d *archive) append(ctx context.Context, s *deadletter.SentLog, rows int, wait time.Duration) (archiveJSON, error) {
	out := archiveJSON{Files: []string{}, LastID: d.last}
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	until, err := s.SettledID(limited)
	if err != nil {
		return out, err
	}
	for d.last < until {
		name, n, err := d.write(ctx, s, deadletter.Filter{AfterID: d.last, UntilID: until, Limit: rows})
		if err != nil || n == 0 {
			return out, err
		}
		out.Archived += n
		out.Files = append(out.Files, name)
		out.LastID = d.last
	}
	return out, nil
}

// write writes one file. It gets its name when it is complete and on disk. If it exists
// then, another process has archived the same rows.
func (d *archive) write(ctx context.Context, s *deadletter.SentLog, f deadletter.Filter) (name string, n int, err error) {
	file, err := os.CreateTemp(d.dir, ".sent-*.tmp")
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	ids := idWriter{w: file}
	n, err = s.Export(ctx, f, &ids)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil || n == 0 {
		return "", 0, err
	}
	name = filepath.Join(d.dir, fmt.Sprintf("sent-%019d.jsonl", ids.first))
	if err := os.Link(file.Name(), name); err != nil {
		return "", 0, fmt.Errorf("%w: does another once archive write to this directory?", err)
	}
	if d.last, err = lastRow(name); err == nil {
		err = syncDirectory(d.dir)
	}
	return name, n, err
}

// syncDirectory makes new names survive a crash of the machine.
func syncDirectory(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// idWriter notes the ID in the first line.
type idWriter struct {
	w     io.Writer
	head  []byte // of the first line, until it is complete
	first int64
}

func (i *idWriter) Write(p []byte) (int, error) {
	if i.first == 0 {
		i.head = append(i.head, p...)
		if line, _, ok := bytes.Cut(i.head, []byte("\n")); ok {
			var row struct {
				ID int64 `json:"id"`
			}
			if err := json.Unmarshal(line, &row); err != nil {
				return 0, err
			}
			i.first, i.head = row.ID, nil
		}
	}
	return i.w.Write(p)
}
