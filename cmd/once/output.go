package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// terminalWidth returns the width of a terminal in characters. If the parameter file is
// not a terminal, it returns 0.
func terminalWidth(file *os.File) int {
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// print writes the value v as one JSON object if --json is set. Otherwise it writes the
// parameter text.
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

// table returns rows below a head. Each column is as wide as its widest cell. If width is
// not 0, a row has at most width characters. To achieve this, table first makes the
// widest columns narrower, but no column narrower than its head. Then it cuts the ends of
// rows that are still too long.
func table(width int, head []string, rows [][]string) string {
	all := append([][]string{head}, rows...)
	wide := make([]int, len(head))
	for _, row := range all {
		for i, cell := range row {
			wide[i] = max(wide[i], utf8.RuneCountInString(plain(cell)))
		}
	}
	fit(wide, head, width)
	var b strings.Builder
	for _, row := range all {
		var line strings.Builder
		for i, cell := range row {
			cell = cut(plain(cell), wide[i])
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", wide[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		b.WriteString(cut(strings.TrimRight(line.String(), " "), width) + "\n")
	}
	return b.String()
}

// shortest is the smallest width to which a column is cut.
const shortest = 8

// fit changes wide, the widths of the columns. It makes the widest columns narrower until
// a row has at most width characters, or no column can become narrower.
func fit(wide []int, head []string, width int) {
	total := 2 * (len(wide) - 1)
	for _, w := range wide {
		total += w
	}
	for ; width > 0 && total > width; total-- {
		widest := -1
		for i, w := range wide {
			if w > max(shortest, utf8.RuneCountInString(head[i])) && (widest < 0 || w >= wide[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return // the rows are still too long, so table cuts their ends
		}
		wide[widest]--
	}
}

// cut returns text, cut to at most width characters. If width is 0, it returns the
// whole text.
func cut(text string, width int) string {
	if width <= 0 || utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width-1)]) + "…"
}

// plain replaces all characters that could control a terminal or break a line. This is
// needed because names and error texts come from other programs.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, text)
}

// lines works like plain, for text of several lines.
func lines(text string) string {
	all := strings.Split(strings.ReplaceAll(text, "\t", "    "), "\n")
	for i := range all {
		all[i] = plain(all[i])
	}
	return strings.Join(all, "\n")
}

// fields returns names and values as text, one pair per line. In the parameter pairs,
// each name is followed by its value. Pairs with an empty value are left out.
func fields(pairs ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(&b, "%-15s %s\n", pairs[i]+":", plain(pairs[i+1]))
		}
	}
	return b.String()
}

// at returns a time in UTC as text, or "" if it is zero.
func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// age returns a duration as text: from 48 hours on in days, from one hour on in hours and
// minutes, and below that in minutes and seconds. It rounds down.
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

// counted returns a number and its noun as text, such as "1 message" or "2 messages".
func counted(n int, noun, nouns string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %s", n, nouns)
}

// content is a payload in JSON output. It is text if the payload is UTF-8, and base64
// otherwise.
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

// messageText returns metadata and payload as text for people.
func messageText(metadata map[string]string, payload []byte) string {
	var b strings.Builder
	if len(metadata) > 0 {
		b.WriteString("metadata:\n")
		for _, key := range sortedKeys(metadata) {
			fmt.Fprintf(&b, "  %s = %s\n", plain(key), plain(metadata[key]))
		}
	}
	if utf8.Valid(payload) {
		fmt.Fprintf(&b, "payload (%d bytes):\n%s\n", len(payload), lines(string(payload)))
	} else {
		fmt.Fprintf(&b, "payload (%d bytes, not text; --json shows it in base64)\n", len(payload))
	}
	return b.String()
}
