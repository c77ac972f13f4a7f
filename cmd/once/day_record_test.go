package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// day records the commands that an operator types in a day, and their output.
type day struct {
	*testing.T

	name   string // of the golden file
	text   strings.Builder
	stable []string // pairs of a text that differs between runs, and the text that replaces it in the file
}

// chapter ends the golden file, and begins the next one with an explanation.
func (d *day) chapter(name, about string) {
	d.Helper()
	if d.name != "" {
		golden(d.T, filepath.Join("day", d.name), d.text.String())
	}
	d.name = name
	d.text.Reset()
	d.note(about)
}

// note adds a note about something that happens outside of the command line.
func (d *day) note(text string) {
	for line := range strings.Lines(text) {
		d.text.WriteString("# " + strings.TrimRight(line, "\n") + "\n")
	}
	d.text.WriteString("\n")
}

// always makes the golden file contain a placeholder in place of a text that differs
// between runs.
func (d *day) always(text, placeholder string) { d.stable = append(d.stable, text, placeholder) }

// types runs a command at the prompt of a service, and records its output.
func (d *day) types(s *shell, code int, args ...string) {
	d.Helper()
	d.text.WriteString(d.block(s.env["PROMPT"], args, s.run(d.Context(), args...), code))
}

// block returns a command and its output as text.
func (d *day) block(prompt string, args []string, got result, code int) string {
	d.Helper()
	if got.code != code {
		d.Fatalf("%s$ once %s: exit code %d, want %d\n%s%s", prompt, strings.Join(args, " "), got.code, code, got.stdout, got.stderr)
	}
	line := prompt + "$ once"
	for _, arg := range args {
		if strings.ContainsAny(arg, " \"") {
			arg = "'" + arg + "'"
		}
		line += " " + arg
	}
	text := got.stdout + got.stderr
	if args[0] == "doctor" {
		text = aboutMessages(text)
	}
	text = d.steady(line+"\n"+text) + "\n"
	if code != exitDone {
		text += fmt.Sprintf("(exit code %d)\n", code)
	}
	return text + "\n"
}

// aboutMessages leaves out the doctor's findings about the servers of the test.
func aboutMessages(text string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(text, "\n\n") {
		for _, name := range []string{"REFUSED:", "DEAD LETTERS:", "QUARANTINE:"} {
			if strings.HasPrefix(part, name) {
				b.WriteString(part + "\n\n")
			}
		}
	}
	return b.String() + "... (findings about the servers of this test are left out)\n"
}

// changing contains patterns of texts that differ between runs, and the texts that
// replace them.
var changing = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b`), "2026-05-01 09:00:00"},
	{regexp.MustCompile(`09:00:00\.\d{3}`), "09:00:00.000"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?`), "2026-05-01T09:00:00"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d( |$)`), "2026-05-01$1"},
	{regexp.MustCompile(`(  +)\S+ \S+ has (\d+ slots?) and sends to rabbitmq .*`), "${1}host-1 4711 has $2 and sends to rabbitmq mq:5672"},
	{regexp.MustCompile(`\b(\d+(ms|s|m|h))+ ago`), "9s ago"},
	{regexp.MustCompile(`(?m)  (\d+(ms|s|m|h))+$`), "  9s"},
	{regexp.MustCompile(`due for (\d+(ms|s|m|h))+`), "due for 9s"},
	{regexp.MustCompile(`(:\d\d  )\d(  +backing off)`), "${1}2$2"}, // tries
	{regexp.MustCompile(`(refused.*message "order-000)\d`), "${1}1"},
	{regexp.MustCompile(`Entry \d+ replaces`), "Entry 2001 replaces"},
	{regexp.MustCompile(`message \S+ \(entry \d+\) replaces`), "message 0197c3a2-6f1e-7cc3-98c4-dc0c0c07398f (entry 2001) replaces"},
	{regexp.MustCompile(`(?m)^replay \d+: .*\n`), ""}, // progress
	{regexp.MustCompile(`/\S+/(\w+\.\w+|sent)\b`), "$1"},
}

// steady replaces the texts that differ between runs.
func (d *day) steady(text string) string {
	text = strings.NewReplacer(d.stable...).Replace(text)
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.instead)
	}
	return strings.TrimRight(text, "\n")
}

// group returns the failure group with this error.
func (d *day) group(s *shell, text string) string {
	d.Helper()
	for _, g := range object[groupsJSON](s, exitDone, "quarantine", "groups").Groups {
		if strings.Contains(g.Error, text) {
			return g.Group
		}
	}
	d.Fatalf("no group has the error %q", text)
	return ""
}

// entry returns the ID of a message's entry. The golden file contains the placeholder
// in place of this ID.
func (d *day) entry(s *shell, messageID, placeholder string) string {
	d.Helper()
	entries := object[entriesJSON](s, exitDone, "quarantine", "list", "--message-id", messageID).Entries
	if len(entries) != 1 {
		d.Fatalf("message %s has %d entries", messageID, len(entries))
	}
	id := fmt.Sprint(entries[0].ID)
	for _, before := range []string{"show ", "edit ", "parked:", "entry ", "entry:          "} {
		d.always(before+id, before+placeholder)
	}
	return id
}
