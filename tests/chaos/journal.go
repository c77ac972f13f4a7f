package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// States of a transaction in a journal. Before a transaction, a writer records the state
// "tried". After the transaction, it records one of the other states. If "tried" is the
// last state of a transaction, the writer was killed before it knew the result, so the
// result counts as unknown.
const (
	tried      = 'T'
	committed  = 'C'
	rolledBack = 'R'
	unknown    = 'U'
)

// journal is the file in which a writer records its transactions. It writes one line
// before each transaction and one line after it. Each line is a single write to the file,
// so even if the process is killed, the file contains no partial line.
type journal struct{ file *os.File }

func openJournal(name string) (*journal, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &journal{file}, err
}

func (j *journal) note(state byte, tx string, events int) error {
	_, err := fmt.Fprintf(j.file, "%c %s %d\n", state, tx, events)
	return err
}

// entry is the latest entry about a transaction.
type entry struct {
	state  byte
	events int
}

// readJournals returns the latest entry of each transaction in the journals of dir. The
// key of the map is the name of the transaction.
func readJournals(dir string) (map[string]entry, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.journal"))
	if err != nil {
		return nil, err
	}
	all := make(map[string]entry)
	for _, name := range files {
		if err := readJournal(name, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func readJournal(name string, into map[string]entry) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var (
			e  entry
			tx string
		)
		if _, err := fmt.Sscanf(lines.Text(), "%c %s %d", &e.state, &tx, &e.events); err != nil {
			return fmt.Errorf("%s: %q: %w", filepath.Base(name), lines.Text(), err)
		}
		if bytes.IndexByte([]byte{tried, committed, rolledBack, unknown}, e.state) < 0 {
			return fmt.Errorf("%s: %q is no state", filepath.Base(name), e.state)
		}
		if e.state == tried {
			if _, again := into[tx]; again {
				return fmt.Errorf("%s: transaction %s began twice", filepath.Base(name), tx)
			}
			e.state = unknown
		}
		into[tx] = e
	}
	return lines.Err()
}
