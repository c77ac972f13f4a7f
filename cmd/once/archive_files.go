package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// archiveFiles is a directory with files of JSON lines, such as sent-0000000000000000001.jsonl,
// whose names sort in the order of their rows.
type archiveFiles struct {
	dir, kind string
	newest    string // name of the last file, or ""
	last      []byte // last line of that file
}

func openArchive(dir, kind string) (*archiveFiles, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, usageError{err}
	}
	d := &archiveFiles{dir: dir, kind: kind}
	files, err := os.ReadDir(dir) // in the order of their names, whose numbers have the same length
	if err != nil {
		return nil, usageError{err}
	}
	for _, file := range slices.Backward(files) {
		if name := file.Name(); strings.HasPrefix(name, kind+"-") && strings.HasSuffix(name, ".jsonl") {
			return d, d.read(filepath.Join(dir, name))
		}
	}
	return d, nil
}

func (d *archiveFiles) read(name string) (err error) {
	d.newest = name
	if d.last, err = lastLine(name); err != nil {
		return d.damaged(err)
	}
	return nil
}

func (d *archiveFiles) damaged(err error) error {
	return fmt.Errorf("%s is damaged (%w): move it away to archive its rows again", d.newest, err)
}

func (d *archiveFiles) fileNumber() (int64, error) {
	_, name, _ := strings.Cut(filepath.Base(d.newest), d.kind+"-")
	return strconv.ParseInt(strings.TrimSuffix(name, ".jsonl"), 10, 64)
}

func lastLine(name string) (last []byte, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		switch {
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, errors.New("the last line has no end")
		case errors.Is(err, io.EOF):
			return last, nil
		case err != nil:
			return nil, err
		}
		last = line
	}
}

// write writes one file with the rows of export, unless there are none, and keeps its last line.
// The file gets its name, with the number of export, when it is complete and on disk. If it exists,
// another process has archived the same rows, which is an error.
func (d *archiveFiles) write(export func(w io.Writer) (rows int, number int64, err error)) (name string, rows int, err error) {
	file, err := os.CreateTemp(d.dir, "."+d.kind+"-*.tmp")
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	rows, number, err := export(file)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil || rows == 0 {
		return "", 0, err
	}
	name = filepath.Join(d.dir, fmt.Sprintf("%s-%019d.jsonl", d.kind, number))
	if err := os.Link(file.Name(), name); err != nil {
		return "", 0, fmt.Errorf("%w: does another once archive write to this directory?", err)
	}
	if err := d.read(name); err != nil {
		return "", 0, err
	}
	return name, rows, syncDirectory(d.dir)
}

// New names in a directory must survive a crash of the machine.
func syncDirectory(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
