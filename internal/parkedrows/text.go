package parkedrows

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

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
	"github.com/watermill-once/once/internal/usercode"
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

// OneMore returns an SQL expression for column plus one, but at most MaxCount.
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

// Tenant returns the tenant of msg for the inbox, where tools can filter by it, or nil (NULL).
func Tenant(msg *message.Message) any {
	if id := TenantOf(msg); id != "" {
		return id
	}
	return nil
}

// TenantOf returns the tenant of msg as it is stored in once_parked, or "".
func TenantOf(msg *message.Message) string { return Clean(msg.Metadata[meta.TenantID], MaxName) }

const labelColumns = `aggregate_type, aggregate_id, event_type, causation_id`

// LabelsOf returns the values of labelColumns as once_parked stores them. A missing value is "".
func LabelsOf(msg *message.Message) []any {
	var all []any
	for _, label := range labelsOf(msg) {
		all = append(all, label)
	}
	return all
}

func labelsOf(msg *message.Message) (all [4]string) {
	for i, key := range [4]string{meta.AggregateType, meta.AggregateID, meta.EventType, meta.CausationID} {
		all[i] = Clean(msg.Metadata[key], MaxName)
	}
	return all
}

type encoder func(args ...any) []any

// withASCIIFallback calls f again with an encoder that escapes all characters outside ASCII, if the
// encoding of the database cannot store an argument. So a failure can be stored whatever its error
// text is. The envelope keeps the original bytes.
func withASCIIFallback(f func(encode encoder) error) error {
	err := f(func(args ...any) []any { return args })
	if dialect.Unstorable(err) {
		err = f(inASCII)
	}
	return err
}

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

// toASCII writes escapes such as "<U+65E5>". Backslashes have a special meaning in dialect.Strings.
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

// CheckName returns an error if the database cannot store the name unchanged: a search would not
// find it.
func CheckName(name string) error {
	if Clean(name, MaxName) != name {
		return fmt.Errorf("%.40q is longer than %d bytes, or no text", name, MaxName)
	}
	return nil
}

type knownError struct{ text, typ string }

func (e knownError) Error() string { return e.text }

// errorType returns the type name of the innermost wrapped error, or the type that was read from a
// row.
func errorType(err error) string {
	if known, ok := errors.AsType[knownError](err); ok {
		return known.typ
	}
	return usercode.TypeName(err)
}

// Cause describes a failure. Consumer and ErrorType are empty for a dead
// letter of the outbox.
type Cause struct {
	Consumer, Reason, ErrorType, Text string

	// MessageID is removed from the text, because many error texts contain it and it can have any
	// form.
	MessageID string
}

// Fingerprint returns a hash of a failure. Failures with the same cause have the same
// hash: Fingerprint leaves ids, numbers, times, addresses and quoted values out of the
// text. The hash contains codes of protocols and databases, and the names of exchanges,
// queues, topics, tables, columns, constraints and fields.
//
// The dead letters of the outbox and the entries of the quarantine use the same hash.
func Fingerprint(c Cause) string {
	sum := sha256.Sum256([]byte(c.Consumer + "\x00" + c.Reason + "\x00" + c.ErrorType + "\x00" + common(c.Text, c.MessageID)))
	return hex.EncodeToString(sum[:8])
}

// minKnownID is the minimum length of a message id that common removes. A shorter id,
// such as "a" or "40", could be a part of the text by chance.
const minKnownID = 4

// common returns an error text with "?" in place of everything that varies between failures with
// one cause.
func common(text, messageID string) string {
	if len(messageID) >= minKnownID {
		text = strings.ReplaceAll(text, messageID, "?")
	}
	text = reason.ReplaceAllString(text, "$1$2$3")
	text = address.ReplaceAllStringFunc(text, service)
	for _, rule := range fixed {
		text = rule.ReplaceAllStringFunc(text, func(match string) string {
			parts := rule.FindStringSubmatch(match)
			return parts[1] + keep(shortened(parts[2]))
		})
	}
	if strings.Contains(text, "pq: ") { // lib/pq appends the bare SQLSTATE
		text = sqlState.ReplaceAllStringFunc(text, keep)
	}
	text = varying.ReplaceAllString(text, "$1?")
	text = token.ReplaceAllStringFunc(text, commonToken)
	text = signed.ReplaceAllString(text, "$1?")
	return several.ReplaceAllString(text, "?")
}

var (
	// reason is the broker's text in an error of amqp091: in quotes, but no value.
	reason = regexp.MustCompile(`(Reason: )"([^"]*)"(.?)`)

	address = regexp.MustCompile(`"?\b[a-z][a-z0-9+.-]*://[^\s"'<>]+"?`)

	// fixed matches names and codes (the second group) that do not vary, although they are quoted
	// or contain digits.
	fixed = []*regexp.Regexp{
		// Names in quotes.
		regexp.MustCompile(`(?i)(\b(?:constraint|column|relation|table|exchange|queue|vhost|topic|field|function|type|schema|database|` +
			`index|sequence|role|header|metadata|arg|argument|parameter|property|attribute|handler|consumer|event|command|for key|` +
			`Key:|validation for|on the) )["'` + "`" + `]([^"'` + "`" + `]*)["'` + "`" + `]`),
		// Names without quotes.
		regexp.MustCompile(`(?i)(\b(?:constraint failed:|constraint|column|relation|table|field|function|type) )([a-z_][a-z0-9_.$]*)`),
		// Codes.
		regexp.MustCompile(`(?i)(\bSQLSTATE[ =:[]*)([0-9A-Z]{5}\b)`),
		regexp.MustCompile(`(\bError )([0-9]{4}(?: \([0-9A-Z]{5}\))?)`), // MySQL
		regexp.MustCompile(`(\bException \()([0-9]{3})\b`),
		regexp.MustCompile(`(: )([0-9]{3}: [A-Z])`),             // package rabbit
		regexp.MustCompile(`(\b)([1-5][0-9]{2} [A-Z][a-z]{2})`), // "404 Not Found"
		regexp.MustCompile(`(?i)(\b(?:status|code|http(?:/[0-9.]+)?|exit status|errno|returned|responded(?: with)?|response|replied|` +
			`answered(?: with)?)(?: code)?[ :=("]{1,3})([0-9]{1,3}\b)`),
		regexp.MustCompile(`((?:constraint failed|SQL logic error|is locked|I/O error|readonly database|is malformed|is full|` +
			`open database file|mismatch)[^()]*)(\([0-9]+\))`), // SQLite
	}
	sqlState = regexp.MustCompile(`\([0-9A-Z]{5}\)`)

	varying = regexp.MustCompile("(?i)()\"(?:[^\"\\\\]|\\\\.)*(?:\"|$)|()`[^`]*`|()“[^”]*”" +
		`|(^|[^0-9a-z])'(?:[^'\\]|\\.|'[0-9a-z])*'` + // an apostrophe within a word begins no value
		`|(=|contains )\([^)]*\)` + // values of a row in PostgreSQL's details
		`|()\[[0-9a-f:.]*:[0-9a-f:.]*(?:%\w+)?\](?::[0-9]+)?` + // IPv6
		`|()[\w.+-]+@[\w-]+\.[\w.-]+` + // e-mail
		`|()(?:(?:mon|tue|wed|thu|fri|sat|sun),? )?[0-9]{1,2}[ /-](?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[ /-][0-9]{2,4}` +
		`|()\b(?:(?:mon|tue|wed|thu|fri|sat|sun),? )?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]* +[0-9]{1,2}\b`)

	token   = regexp.MustCompile(`[0-9A-Za-z_-]{20,}|[0-9A-Za-z_]+`)
	signed  = regexp.MustCompile(`(^|[\s(=:,])[-+]\?`)
	several = regexp.MustCompile(`\?(?:[\s,;:./+-]*\?)+`)
)

func service(url string) string {
	scheme, rest, _ := strings.Cut(strings.Trim(url, `"`), "://")
	rest, _, _ = strings.Cut(rest, "?")
	rest = rest[strings.Index(rest, "@")+1:]
	host, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndex(host, ":"); i >= 0 {
		host = host[:i]
	}
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if !segment.MatchString(part) {
			parts[i] = "?"
		}
	}
	return scheme + "://" + host + "/" + strings.Join(parts, "/")
}

// segment matches a part of a path that is no id.
var segment = regexp.MustCompile(`^(?:[A-Za-z._-]{0,24}|v[0-9]{1,2})$`)

// shortened removes what makes a name unique, such as the date of a partition or the id of a
// temporary queue.
func shortened(name string) string {
	return unique.ReplaceAllString(token.ReplaceAllStringFunc(name, func(s string) string {
		if random(s) {
			return "?"
		}
		return s
	}), "?")
}

// unique matches numbers that are too long for the number of a version.
var unique = regexp.MustCompile(`[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27}|[0-9]{6,}|[0-9]{4}(?:[_-][0-9]{1,2}){1,2}`)

// keep hides the digits of text from the rules for numbers.
func keep(text string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return '\uE000' + r
		}
		return r
	}, text)
}

// technical matches words that contain digits and do not vary.
var technical = regexp.MustCompile(`(?i)^(?:u?int[0-9]+|float[0-9]+|complex[0-9]+|x509|sha[0-9]+|md5|utf[0-9]+|base[0-9]+|ipv[46]|` +
	`(?:tcp|udp|ip)[46]|http[123]|oauth[12]|s3|v[0-9]{1,2})$`)

// numbered matches a word with a number at its end, such as "order42".
var numbered = regexp.MustCompile(`^([A-Za-z_-]+)[0-9]+$`)

func commonToken(word string) string {
	switch {
	case random(word):
		return "?"
	case !strings.ContainsAny(word, "0123456789") || technical.MatchString(word):
		return word
	case strings.Contains(word, "-"):
		return dashed.ReplaceAllStringFunc(word, commonToken)
	}
	if parts := numbered.FindStringSubmatch(word); parts != nil {
		return parts[1] + "?"
	}
	return "?"
}

var dashed = regexp.MustCompile(`[^-]+`)

// random reports whether a word looks like a drawn id: a UUID, a ULID, a hash, or letters and
// digits in no order.
func random(word string) bool {
	if len(word) < 8 {
		return false
	}
	var lower, upper, digit, changes int
	var last byte
	class := func(c byte) byte {
		switch {
		case '0' <= c && c <= '9':
			digit++
			return '0'
		case 'a' <= c && c <= 'z':
			lower++
			return 'a'
		case 'A' <= c && c <= 'Z':
			upper++
			return 'A'
		}
		return '_'
	}
	for i := range len(word) {
		c := class(word[i])
		if i > 0 && c != last {
			changes++
		}
		last = c
	}
	switch {
	case digit > 0 && hexadecimal.MatchString(word):
		return digit < len(word) // a long number is no hash, but a number
	case len(word) == 26 && digit > 0 && lower*upper == 0 && lower+upper+digit == 26: // ULID
		return true
	case len(word) == 22 && lower > 0 && upper > 0 && changes >= 7: // short UUID
		return true
	}
	return len(word) >= 20 && digit > 0 && lower > 0 && upper > 0 && changes >= len(word)/4
}

var hexadecimal = regexp.MustCompile(`^(?:[0-9a-f]{8,}|[0-9A-F]{8,}|[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27})$`)
