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

	"github.com/watermill-once/once/deadletter"
)

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
