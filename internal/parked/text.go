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

	"github.com/watermill-once/once/internal/dialect"
)

// Bounds of the text columns, in bytes.
const (
	MaxName  = 255
	MaxError = 4096
)

// MaxCount is the end of the columns of counts, which PostgreSQL has. A count
// that somebody has set stays there.
const MaxCount = math.MaxInt32

var most = strconv.Itoa(MaxCount)

// oneMore is a count and one, for SQL.
func OneMore(column string) string {
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

// fitter returns the arguments of a statement as the database can store them.
type fitter func(args ...any) []any

// fitting runs do with the arguments of its statement as they are. If the
// encoding of the database has no room for one of them, it runs do again with
// all that is outside ASCII spelled out: what records a failure must not fail
// for what the message says. The envelope, which is bytes, has the message as it
// came.
func fitting(do func(fit fitter) error) error {
	err := do(func(args ...any) []any { return args })
	if dialect.Unstorable(err) {
		err = do(spelled)
	}
	return err
}

// spelled returns args with the texts among them in ASCII.
func spelled(args ...any) []any {
	all := make([]any, len(args))
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			arg = spell(text)
		}
		all[i] = arg
	}
	return all
}

// spell writes "<U+65E5>" in place of a letter outside ASCII: nothing in it has a
// meaning in a list of texts, as a backslash would.
func spell(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "<%U>", r)
		}
	}
	return b.String()
}

// CheckName refuses a name that cannot be stored as it is, and so would not be
// found by it again.
func CheckName(name string) error {
	if Clean(name, MaxName) != name {
		return fmt.Errorf("%.40q is longer than %d bytes, or no text", name, MaxName)
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
