package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

var hostileNames = []string{
	"A1", "A1 ", "A1   ", "   A1", "A1\t", "A1\n", "A1\r\n", "\nA1", "a1", "A1/../B", "/", "A1%2F", "A1+B", "A1 B", "A1  B", "A1\u00a0B", "0",
	"A1,B", `"A1"`, `A"1`, `A1\n`, "\uff211", "e\u0301", "\u00e9", "-x", "--all", "*", "%", "A1=B", "null", "true", strings.Repeat("x", 200),
}

// A command acts on the rows with exactly the name that was given, and on no others.
func TestTrap114_CommandActsOnTheNameThatWasGiven(t *testing.T) {
	t.Parallel()
	db := kit.SQLite(t)
	s := newShell(t, db)
	for i, name := range hostileNames {
		for _, query := range []string{
			`INSERT INTO once_outbox_dead (position, message_id, topic, ordering_key, payload, metadata, created_at, attempts, last_error,
			                               reason, unknown)
				VALUES ($1, $2, $2, $2, '', '{}', 0, 1, 'no queue', 'exhausted', 0)`,
			`INSERT INTO once_blocked_keys (ordering_key, position, successors_after, reason) VALUES ($2, $1, $1, 'dead')`,
		} {
			kit.Exec(t, db, query, i+1, name)
		}
	}
	names := func(query string) (all []string) {
		t.Helper()
		return kit.Lines(t, db, query)
	}
	left := slices.Clone(hostileNames)
	for i, name := range hostileNames {
		for _, flag := range []string{"--topic=", "--message-id=", "--ordering-key="} {
			if got := object[lettersJSON](s, exitDone, "dead", "list", flag+name).Letters; len(got) != 1 || got[0].Topic != name {
				t.Fatalf("dead list %s%q: %+v", flag, name, got)
			}
		}
		s.once(exitDone, "outbox", "pause", "--topic="+name, "--why=test")
		s.once(exitDone, "dead", "release", "--why=test", "--", name)
		left = slices.Delete(left, 0, 1)
		if got := names(`SELECT ordering_key FROM once_blocked_keys ORDER BY position`); !slices.Equal(got, left) {
			t.Fatalf("dead release %q: %q are left, want %q", name, got, left)
		}
		if i%2 == 0 {
			continue
		}
		s.once(exitDone, "dead", "discard", "--ordering-key="+name, "--yes", "--why=test")
	}
	if got, want := names(`SELECT name FROM once_pauses ORDER BY name`), slices.Sorted(slices.Values(hostileNames)); !slices.Equal(got, want) {
		t.Errorf("paused topics are %q, want %q", got, want)
	}
	want := []string{}
	for i := 0; i < len(hostileNames); i += 2 {
		want = append(want, hostileNames[i])
	}
	if got := names(`SELECT topic FROM once_outbox_dead ORDER BY position`); !slices.Equal(got, want) {
		t.Errorf("letters are %q, want %q", got, want)
	}
	s.says(s.once(exitUsage, "dead", "discard", "--topic=", "--yes", "--why=test"), "--topic is empty")
}

func TestListOfNamesKeepsThem(t *testing.T) {
	for text, want := range map[string]string{
		"a,b":        `["a" "b"]`,
		" a , b ":    `[" a " " b "]`, //nolint:gocritic // the blanks belong to the names
		"a\nb,c\r\n": `["a\nb" "c\r\n"]`,
		`"a,b",c`:    `["a,b" "c"]`,
		`"a""b"`:     `["a\"b"]`,
		"\"a\r\nb\"": `["a\r\nb"]`,
		"a,,b":       "a name is empty",
		"":           "a name is empty",
		"a,":         "a name is empty",
		`a"b`:        `the name "a\"b" has a quote: put the name in double quotes, and write two quotes for a quote in it`,
		`"a"b`:       `"b" follows a closing quote: put a comma between names`,
		`"a`:         `the closing quote of "a is missing`,
	} {
		names, err := parseNames(text)
		got := fmt.Sprintf("%q", names)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// A publisher chooses the content of a message. What a command writes about it for
// people is limited all the same.
func TestTrap113_TextOfHostileMessagesIsLimited(t *testing.T) {
	long := strings.Repeat("x\t\x00", 1_000_000)
	rows := [][]string{{"1", long, "last"}}
	for range 99 {
		rows = append(rows, []string{"2", "short", "last"})
	}
	for _, width := range []int{0, 80} {
		if got := len(table(width, []string{"ID", "TOPIC", "ERROR"}, rows)); got > 2*len(long) {
			t.Errorf("a table of %d bytes, width %d, has %d bytes", len(long), width, got)
		}
	}
	metadata := map[string]string{"long": long, long: long}
	for i := range 100_000 {
		metadata[fmt.Sprint("key-", i)] = "\x00"
	}
	if got := len(messageText(metadata, []byte(long))); got > 1<<20 {
		t.Errorf("a message has %d bytes of text", got)
	}
}
