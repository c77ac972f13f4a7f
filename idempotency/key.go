package idempotency

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// maxKey is the maximum length of a key in bytes.
const maxKey = 255

// keyOf returns the key of a request, or "" if the request has no key. If the key is
// not valid, the result problem says why. According to the draft of the header
// Idempotency-Key, a key is a string of RFC 8941, in quotes. Many clients send the key
// without quotes, and keyOf accepts this form, too.
func keyOf(r *http.Request) (key, problem string) {
	values := r.Header.Values(Header)
	switch {
	case len(values) == 0:
		return "", ""
	case len(values) > 1:
		return "", "the request has " + strconv.Itoa(len(values)) + " keys"
	}
	key = strings.Trim(values[0], " \t")
	if quoted, ok := strings.CutPrefix(key, `"`); ok {
		if key, problem = unquote(quoted); problem != "" {
			return "", problem
		}
	}
	switch {
	case key == "":
		return "", "it is empty"
	case len(key) > maxKey:
		return "", fmt.Sprintf("it has %d characters, the limit is %d", len(key), maxKey)
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }):
		return "", "it has characters other than printable ASCII"
	}
	return key, ""
}

// unquote returns the string after an opening quote, as in RFC 8941, section 3.3.3. It
// ignores parameters after the string, because the draft of the header Idempotency-Key
// defines none.
func unquote(quoted string) (value, problem string) {
	var b strings.Builder
	for i := 0; i < len(quoted); i++ {
		switch quoted[i] {
		case '\\':
			i++
			if i == len(quoted) || quoted[i] != '"' && quoted[i] != '\\' {
				return "", `a backslash is followed by neither a quote nor a backslash`
			}
			b.WriteByte(quoted[i])
		case '"':
			if rest := quoted[i+1:]; rest != "" && rest[0] != ';' {
				return "", "something follows its closing quote"
			}
			return b.String(), ""
		default:
			b.WriteByte(quoted[i])
		}
	}
	return "", "its closing quote is missing"
}
