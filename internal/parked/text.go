package parked

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of the text columns, in bytes.
const (
	maxName  = 255
	maxError = 4096
)

// maxCount is the end of the columns of counts, which PostgreSQL has. A count
// that somebody has set stays there.
const maxCount = math.MaxInt32

var most = strconv.Itoa(maxCount)

// oneMore is a count and one, for SQL.
func oneMore(column string) string {
	return "CASE WHEN " + column + " < " + most + " THEN " + column + " + 1 ELSE " + most + " END"
}

// Clean returns text that a text column can hold: valid UTF-8, no NUL, at most
// limit bytes.
func Clean(text string, limit int) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

// CheckName refuses a name that cannot be stored as it is, and so would not be
// found by it again.
func CheckName(name string) error {
	if Clean(name, maxName) != name {
		return fmt.Errorf("%.40q is longer than %d bytes, or no text", name, maxName)
	}
	return nil
}

// knownError is an error of which the row knows text and type already.
type knownError struct{ text, typ string }

func (e knownError) Error() string { return e.text }

// errorType names the type of the innermost error that says what went wrong.
func errorType(err error) string {
	if known, ok := errors.AsType[knownError](err); ok {
		return known.typ
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return fmt.Sprintf("%T", err)
		}
		err = inner
	}
}

// varying is what differs between two occurrences of one fault: ids, numbers,
// quoted values.
var varying = regexp.MustCompile(`"[^"]*"|'[^']*'|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|0x[0-9a-fA-F]+|[0-9]+`)

// fingerprint groups failures of a consumer that have one cause.
func fingerprint(consumer, reason, errType, text string) string {
	sum := sha256.Sum256([]byte(consumer + "\x00" + reason + "\x00" + errType + "\x00" + varying.ReplaceAllString(text, "?")))
	return hex.EncodeToString(sum[:8])
}
