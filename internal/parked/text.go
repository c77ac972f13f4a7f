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

// MaxCount is the highest number that the columns of counts can store in PostgreSQL.
// A count that was edited by hand to this number stays there.
const MaxCount = math.MaxInt32

var maxCountText = strconv.Itoa(MaxCount)

// OneMore returns an SQL expression for the column plus one, at most MaxCount.
func OneMore(column string) string {
	return "CASE WHEN " + column + " < " + maxCountText + " THEN " + column + " + 1 ELSE " + maxCountText + " END"
}

// Clean returns text in a form that a text column can store: valid UTF-8 without
// NUL, at most limit bytes.
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

// withASCIIFallback runs do with the arguments of its statement unchanged. If the
// encoding of the database cannot store one of them, it runs do again with escapes
// for all characters outside ASCII: the text of a message must not prevent that its
// failure is stored. The envelope has the message as it came, in bytes.
func withASCIIFallback(do func(encode encoder) error) error {
	err := do(func(args ...any) []any { return args })
	if dialect.Unstorable(err) {
		err = do(inASCII)
	}
	return err
}

// inASCII returns args with every text in ASCII.
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

// toASCII replaces each character outside ASCII by an escape such as "<U+65E5>". In a
// list of texts a backslash would have a meaning, the angle brackets have none.
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

// CheckName refuses a name that cannot be stored unchanged. It could not be found by
// that name.
func CheckName(name string) error {
	if Clean(name, MaxName) != name {
		return fmt.Errorf("%.40q is longer than %d bytes, or no text", name, MaxName)
	}
	return nil
}

// knownError is an error whose text and type come from the row.
type knownError struct{ text, typ string }

func (e knownError) Error() string { return e.text }

// errorType returns the type of the innermost wrapped error.
func errorType(err error) string {
	if known, ok := errors.AsType[knownError](err); ok {
		return known.typ
	}
	if inner := errors.Unwrap(err); inner != nil {
		return errorType(inner)
	}
	return fmt.Sprintf("%T", err)
}

// varying matches the parts of an error text that differ between two occurrences of
// one fault: ids, numbers, quoted values.
var varying = regexp.MustCompile(`"[^"]*"|'[^']*'|[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|0x[0-9a-fA-F]+|[0-9]+`)

// Fingerprint returns a text that failures of a consumer with one cause share.
func Fingerprint(consumer, reason, errType, text string) string {
	sum := sha256.Sum256([]byte(consumer + "\x00" + reason + "\x00" + errType + "\x00" + varying.ReplaceAllString(text, "?")))
	return hex.EncodeToString(sum[:8])
}
