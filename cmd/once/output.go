package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/watermill-once/once/internal/meta"
)

// terminalWidth returns 0 if file is not a terminal.
func terminalWidth(file *os.File) int {
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

func (a *app) print(v any, text string) error {
	if !a.settings.json {
		_, err := io.WriteString(a.stdout, text)
		return err
	}
	encoder := json.NewEncoder(a.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// widest limits the padding of columns: one long cell must not make all rows as long.
const widest = 120

// table returns rows below a head, with at most width characters if it is not 0: columns become
// narrower, times and ids last, and then the ends of rows are cut.
func table(width int, head []string, rows [][]string) string {
	all := append([][]string{head}, rows...)
	wide := make([]int, len(head))
	most := cmp.Or(width, widest)
	for _, row := range all {
		for i, cell := range row {
			wide[i] = min(most, max(wide[i], utf8.RuneCountInString(plain(cell))))
		}
	}
	fit(wide, head, width)
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			cell = plain(cell)
			if width > 0 {
				cell = cut(cell, wide[i])
			}
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", max(0, wide[i]-utf8.RuneCountInString(cell))+2))
			}
		}
		b.WriteString(cut(strings.TrimRight(line.String(), " "), width) + "\n")
	}
	return b.String()
}

// Columns become narrower than short only if a table of such columns is too wide.
const (
	short    = 8
	shortest = 5
)

// fit makes columns narrower until a row has at most width characters: first those without times
// and ids, then the ids of messages, and last times and the IDs of rows, which a person needs for
// the next command.
func fit(wide []int, head []string, width int) {
	for _, step := range []struct {
		last  int // the columns with the highest rank are not cut in this step
		least func(head string) int
	}{
		{0, func(head string) int { return max(short, utf8.RuneCountInString(head)) }},
		{0, func(string) int { return shortest }},
		{1, func(string) int { return short }},
		{2, func(string) int { return short }},
	} {
		for total(wide) > width && width > 0 {
			at := -1
			for i, w := range wide {
				if rank(head[i]) <= step.last && w > step.least(head[i]) && (at < 0 || w >= wide[at]) {
					at = i
				}
			}
			if at < 0 {
				break
			}
			wide[at]--
		}
	}
}

// Columns of a higher rank are cut later.
func rank(head string) int {
	switch {
	case head == "ID" || strings.HasSuffix(head, "(UTC)"):
		return 2
	case head == "MESSAGE":
		return 1
	}
	return 0
}

func total(wide []int) int {
	sum := 2 * (len(wide) - 1)
	for _, w := range wide {
		sum += w
	}
	return sum
}

// With width 0, cut returns the whole text.
func cut(text string, width int) string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width-1)]) + "…"
}

// Names and error texts come from other programs, so what could control a terminal or break a line
// is replaced, and blanks at the ends are shown.
func plain(text string) string { return meta.ShowBlanks(printable(text)) }

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, text)
}

func lines(text string) string {
	all := strings.Split(strings.ReplaceAll(text, "\t", "    "), "\n")
	for i := range all {
		all[i] = printable(all[i])
	}
	return strings.Join(all, "\n")
}

// Pairs with an empty value are left out.
func fields(pairs ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(&b, "%-15s %s\n", pairs[i]+":", plain(pairs[i+1]))
		}
	}
	return b.String()
}

func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

func age(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= time.Hour:
		return strings.TrimSuffix(d.Truncate(time.Minute).String(), "0s")
	default:
		return d.Truncate(time.Second).String()
	}
}

func counted(n int, noun, nouns string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %s", n, nouns)
}

// content is text if the payload is UTF-8, and base64 otherwise.
type content struct {
	Payload       *string `json:"payload,omitempty"`
	PayloadBase64 []byte  `json:"payload_base64,omitempty"`
}

func contentOf(payload []byte) content {
	if !utf8.Valid(payload) {
		return content{PayloadBase64: payload}
	}
	text := string(payload)
	return content{Payload: &text}
}

// Whoever can publish a message decides how large its payload and metadata are.
const (
	shownPayload  = 64 << 10
	shownMetadata = 500
	shownValue    = 4 << 10
)

func messageText(metadata map[string]string, payload []byte) string {
	var b strings.Builder
	if len(metadata) > 0 {
		b.WriteString("metadata:\n")
	}
	for i, key := range sortedKeys(metadata) {
		if i == shownMetadata {
			fmt.Fprintf(&b, "  (%d more; --json shows them)\n", len(metadata)-i)
			break
		}
		fmt.Fprintf(&b, "  %s = %s\n", plain(beginning(key, shownValue)), plain(beginning(metadata[key], shownValue)))
	}
	switch {
	case !utf8.Valid(payload):
		fmt.Fprintf(&b, "payload (%d bytes, not text; --json shows it in base64)\n", len(payload))
	case len(payload) > shownPayload:
		shown := beginning(string(payload[:shownPayload+1]), shownPayload)
		fmt.Fprintf(&b, "payload (%d bytes; --json shows all of it):\n%s\n", len(payload), lines(shown))
	default:
		fmt.Fprintf(&b, "payload (%d bytes):\n%s\n", len(payload), lines(string(payload)))
	}
	return b.String()
}

func beginning(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit] + "…"
}
