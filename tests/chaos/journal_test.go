package main

import (
	"maps"
	"path/filepath"
	"testing"
)

func TestJournalHasTheLastEntryOfEachTransaction(t *testing.T) {
	dir := t.TempDir()
	for name, notes := range map[string][]struct {
		state byte
		tx    string
	}{
		"writer1-1": {{tried, "a"}, {tried, "b"}, {committed, "a"}, {rolledBack, "b"}},
		"writer1-2": {{tried, "c"}, {unknown, "c"}, {tried, "d"}}, // killed while its transaction d was open
	} {
		j, err := openJournal(filepath.Join(dir, name+".journal"))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range notes {
			if err := j.note(n.state, n.tx, 3); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := readJournals(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]entry{"a": {committed, 3}, "b": {rolledBack, 3}, "c": {unknown, 3}, "d": {unknown, 3}}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAJournalThatContradictsItselfIsAnError(t *testing.T) {
	for name, notes := range map[string]string{"tried twice": "TT", "no state": "X"} {
		dir := t.TempDir()
		j, err := openJournal(filepath.Join(dir, "w.journal"))
		if err != nil {
			t.Fatal(err)
		}
		for _, state := range []byte(notes) {
			if err := j.note(state, "a", 1); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := readJournals(dir); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
