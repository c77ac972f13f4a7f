package console

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// visible returns the text with some characters replaced by their codes: characters that
// a browser would not show, and characters that would change the order of their
// neighbors. This is needed because names, errors and payloads come from other programs.
func visible(text string) string {
	if !strings.ContainsFunc(text, hidden) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)): // an invalid byte
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case hidden(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func hidden(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029')
}

// hexDump returns bytes as text. Each line contains 16 bytes, their offset and their
// characters.
func hexDump(content []byte) string { return hex.Dump(content) }
