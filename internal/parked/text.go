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

// Maximum lengths of the text columns, in bytes.
const (
	MaxName  = 255
	MaxError = 4096
	MaxStack = 8192
)

// MaxCount is the highest value of an integer column in PostgreSQL. A count that was
// set to this value by hand does not increase.
const MaxCount = math.MaxInt32

var maxCountText = strconv.Itoa(MaxCount)

// OneMore returns an SQL expression for the value of column plus one. The expression
// never exceeds MaxCount.
func OneMore(column string) string {
	return "CASE WHEN " + column + " < " + maxCountText + " THEN " + column + " + 1 ELSE " + maxCountText + " END"
}

// Clean returns text in a form that a text column can store: valid UTF-8, without NUL,
// and at most limit bytes long.
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

// encoder returns the arguments of a statement in a form that the database can store.
type encoder func(args ...any) []any

// withASCIIFallback calls f with an encoder that leaves the arguments of a statement
// unchanged. If the encoding of the database cannot store one of the arguments,
// withASCIIFallback calls f again, with an encoder that replaces all characters outside
// ASCII with escapes. So a failure can be stored whatever its error text is. The
// envelope keeps the original bytes of the message.
func withASCIIFallback(f func(encode encoder) error) error {
	err := f(func(args ...any) []any { return args })
	if dialect.Unstorable(err) {
		err = f(inASCII)
	}
	return err
}

// inASCII returns a copy of args in which toASCII has converted each string. Other
// values are unchanged.
func inASCII(args ...any) []any {
	all := make([]any, len(args))
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			arg = toASCII(text)
		}
		all[i] = arg
	}
	return all
}

// toASCII replaces each character outside ASCII with an escape such as "<U+65E5>". It
// does not use backslashes, because they have a special meaning in a list of strings,
// see dialect.Strings.
func toASCII(text string) string {
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

// CheckName returns an error if the database cannot store the name unchanged. A search
// would not find such a name.
func CheckName(name string) error {
	if Clean(name, MaxName) != name {
		return fmt.Errorf("%.40q is longer than %d bytes, or no text", name, MaxName)
	}
	return nil
}

// knownError is an error whose text and type were read from a row.
type knownError struct{ text, typ string }

func (e knownError) Error() string { return e.text }

// errorType returns the type name of the innermost wrapped error. For an error that was
// read from a row, it returns the type in the row.
func errorType(err error) string {
	if known, ok := errors.AsType[knownError](err); ok {
		return known.typ
	}
	if inner := errors.Unwrap(err); inner != nil {
		return errorType(inner)
	}
	return fmt.Sprintf("%T", err)
}

// varying matches the parts of an error text that can differ although the cause is the
// same: ids, numbers and quoted values.
var varying = regexp.MustCompile(`"[^"]*"|'[^']*'|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|0x[0-9a-fA-F]+|[0-9]+`)

// Fingerprint returns a hash of a consumer, and of the reason, the type and the text of
// an error. It leaves ids, numbers and quoted values out of the text, so that failures
// with the same cause have the same hash.
func Fingerprint(consumer, reason, errType, text string) string {
	sum := sha256.Sum256([]byte(consumer + "\x00" + reason + "\x00" + errType + "\x00" + varying.ReplaceAllString(text, "?")))
	return hex.EncodeToString(sum[:8])
}
