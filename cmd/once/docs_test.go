package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var onceCommand = regexp.MustCompile("(?m)(?:`|^)once ([a-z]+[^`#\n]*)")

// Each command that a page of the docs names must exist, and must have the flags that
// the page names.
func TestCommandsOfTheDocsExist(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range onceCommand.FindAllStringSubmatch(string(text), -1) {
			words := strings.Fields(match[1])
			cmd, _, err := (&app{}).rootCommand().Find(words)
			if err != nil || !cmd.Runnable() && !cmd.HasSubCommands() {
				t.Errorf("%s: once %s: %v", page, match[1], err)
				continue
			}
			found++
			for _, word := range words {
				name, isFlag := strings.CutPrefix(word, "--")
				name, _, _ = strings.Cut(name, "=")
				if isFlag && cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
					t.Errorf("%s: once %s: no flag --%s", page, match[1], name)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d commands were found", found)
	}
}
