package main

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/test/kit"
)

var onceCommand = regexp.MustCompile("(?m)(?:`|^ *)once ([a-z]+[^`#\n]*)")

// Each command that a page of the docs names must exist, and must have the flags that
// the page names.
func TestCommandsOfTheDocsExist(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	kit.OK(t, err)
	found := 0
	for _, page := range pages {
		text := kit.ReadFile(t, page)
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

// row contains the objects that one row of the table in JSON.md describes.
// This table describes the JSON output of all commands.
type row struct {
	of        []any // objects with the fields
	elsewhere []any // objects whose fields other rows or the text above describe
}

// counts contains the fields that docs/command-line.md describes in its section about JSON.
type counts struct {
	More  bool  `json:"more"`
	About int64 `json:"about"`
}

// objects maps the first cell of each row of the table in JSON.md to the
// row.
var objects = map[string]row{
	"migrate up, migrate check":      {of: []any{tablesJSON{}}},
	"migrate sql, migrate roles":     {of: []any{sqlJSON{}}},
	"... groups":                     {of: []any{groupsJSON{}}},
	"... count":                      {of: []any{countJSON{}}},
	"quarantine list":                {[]any{entriesJSON{}}, []any{entryJSON{}}},
	"quarantine show":                {of: []any{entryJSON{}}},
	"parked list":                    {[]any{parkedListJSON{}}, []any{parkedJSON{}}},
	"parked show":                    {of: []any{parkedJSON{}}},
	"parked run, cancel, discard":    {of: []any{parkedChangeJSON{}}},
	"consumers list":                 {of: []any{consumersJSON{}}},
	"consumers pause, resume, limit": {of: []any{pausedTopicsJSON{}}},
	"consumers remove":               {of: []any{removedJSON{}}},
	"dead list":                      {[]any{lettersJSON{}}, []any{letterJSON{}}},
	"dead show":                      {of: []any{letterJSON{}}},
	"sent list":                      {[]any{sentListJSON{}}, []any{sentJSON{}}},
	"sent show":                      {of: []any{sentJSON{}}},
	"... replay, ... discard, replays resume": {[]any{changeJSON{}}, []any{groupJSON{}, replaysJSON{}}},
	"outbox list":                 {[]any{pendingListJSON{}}, []any{pendingJSON{}}},
	"outbox show":                 {of: []any{pendingJSON{}}},
	"outbox count, outbox topics": {of: []any{partJSON{}, topicsJSON{}}},
	"outbox paused":               {of: []any{pausedJSON{}}},
	"outbox pause, outbox resume": {of: []any{scopeJSON{}}},
	"outbox blocked":              {of: []any{blockedJSON{}}},
	"outbox retry, outbox cancel": {[]any{changeJSON{}}, []any{groupsJSON{}, replaysJSON{}, replaysOf{}}},
	"versions list":               {of: []any{versionsJSON{}}},
	"versions waiting":            {of: []any{waitingListJSON{}}},
	"audit":                       {of: []any{auditJSON{}}},
	"archive sent":                {of: []any{archiveSentJSON{}}},
	"archive handled":             {of: []any{archiveHandledJSON{}}},
	"replays list":                {of: []any{replaysJSON{}}},
	"quarantine edit":             {of: []any{editJSON{}}},
	"... export --file":           {of: []any{exportJSON{}}},
	"quarantine import":           {of: []any{importJSON{}}},
	"dead release":                {of: []any{releaseJSON{}}},
	"sweep":                       {of: []any{sweepJSON{}}},
	"mover --once":                {of: []any{moverJSON{}}},
	"trace":                       {of: []any{traceJSON{}}},
	"status":                      {[]any{statusJSON{}}, []any{counts{}, pauseJSON{}}},
	"doctor":                      {of: []any{doctorJSON{}}},
}

// replaysOf has those fields of changeJSON that are set only for replays.
type replaysOf struct {
	Replay   int64 `json:"replay"`
	ReplayID int64 `json:"replay_id"`
}

// The variable sameAs lists rows that refer to another row. The variable values lists
// words in backticks that are not fields.
var (
	sameAs = []string{"replays stop, replays watch"}
	values = []string{"show", "quarantine", "dead", "sent"}
)

// quoted finds the names of fields in a cell of the table in JSON.md. They
// are in backticks.
var quoted = regexp.MustCompile("`([a-z_]+)`")

// JSON.md must name exactly the fields that the JSON objects have.
func TestPageNamesTheFieldsOfObjects(t *testing.T) {
	text := kit.ReadFile(t, "JSON.md")
	left := maps.Clone(objects)
	for line := range strings.Lines(string(text)) {
		cells := strings.SplitN(strings.Trim(line, "|\n "), " | ", 2)
		if !strings.HasPrefix(line, "| `") || len(cells) != 2 {
			continue
		}
		name := strings.ReplaceAll(cells[0], "`", "")
		if slices.Contains(sameAs, name) {
			continue
		}
		described, ok := left[name]
		if !ok {
			t.Errorf("no object for the row %q: add it to objects", name)
			continue
		}
		delete(left, name)
		documented := map[string]bool{}
		for _, match := range quoted.FindAllStringSubmatch(cells[1], -1) {
			documented[match[1]] = true
		}
		fields, elsewhere := fieldsOf(described.of), fieldsOf(described.elsewhere)
		for _, field := range slices.Sorted(maps.Keys(fields)) {
			if !documented[field] && !elsewhere[field] && field != "payload_base64" {
				t.Errorf("%s: the page does not name the field %s", name, field)
			}
		}
		for _, field := range slices.Sorted(maps.Keys(documented)) {
			if !fields[field] && !slices.Contains(values, field) {
				t.Errorf("%s: the page names %s, and the object has no such field", name, field)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		t.Errorf("the page has no row %q", name)
	}
}

func fieldsOf(objects []any) map[string]bool {
	fields := map[string]bool{}
	for _, o := range objects {
		addFields(fields, reflect.TypeOf(o))
	}
	return fields
}

// addFields adds the names of the fields of an object, and of the objects in it.
func addFields(fields map[string]bool, kind reflect.Type) {
	for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
		kind = kind.Elem()
	}
	if kind.Kind() != reflect.Struct || kind == reflect.TypeFor[time.Time]() || kind.Implements(reflect.TypeFor[json.Marshaler]()) {
		return
	}
	for f := range kind.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			fields[name] = true
		}
		addFields(fields, f.Type)
	}
}
