// Package dsn removes data source names, and the passwords in them, from errors.
package dsn

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// unreadable replaces an error that quotes a data source name.
const unreadable = "the data source name cannot be parsed%s (it is not shown because it may contain a password): " +
	"in a URL percent-encode user, password and database; in key=value pairs quote values with blanks"

var (
	errUnreadable = fmt.Errorf(unreadable, "")

	// wrongValue matches lib/pq's error about a value. The value may be the end of an
	// unquoted password with blanks.
	wrongValue = regexp.MustCompile(`^pq: wrong value for (\S+): `)

	// quotes are parts of the errors of lib/pq and pgx about a data source name that
	// they cannot parse. Most of these errors quote it.
	quotes = []string{"in connection info string", "literal in connection string", "missing character after backslash", "cannot parse `"}
)

// Hide returns err without the contents of a data source name. Pass every error of a
// new connection through it: database/sql parses the name only then, and drivers quote
// a name that they cannot parse.
//
// Hide replaces an error about parsing by an error without a quote. In other errors it
// covers passwords. errors.Is and errors.As still find the driver's error, but
// errors.Unwrap does not, because a logger that follows the chain would log its text.
func Hide(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if match := wrongValue.FindStringSubmatch(text); match != nil {
		return fmt.Errorf(unreadable, ", it has a wrong value for "+match[1])
	}
	if parsing, ok := errors.AsType[*url.Error](err); ok && parsing.Op == "parse" {
		return errUnreadable
	}
	for _, words := range quotes {
		if strings.Contains(text, words) {
			return errUnreadable
		}
	}
	if covered := Cover(text); covered != text {
		return hidden{text: covered, err: err}
	}
	return err
}

const cover = "***"

var (
	// The end of the value after "password=" is uncertain: an unquoted value with blanks
	// may continue where the next pair seems to begin. So all of the rest is covered.
	pair = regexp.MustCompile(`(?is)((?:password|pwd)(?:\s*=|["']\s*[:=])\s*)[^\s].*`)

	// The userinfo of a URL may extend to the last "@".
	userinfo = regexp.MustCompile(`(?s)://[^\s/]*:.*@`)

	// MySQL's "user:password@tcp(host)", which has no scheme that marks its beginning.
	beforeProtocol = regexp.MustCompile(`(?s)[^\s"'` + "`" + `]*:.*@(\w*)\(`)
)

// Cover returns text with all possible passwords covered: in the URL or the key=value
// pairs of a data source name. If in doubt it covers more.
func Cover(text string) string {
	text = pair.ReplaceAllString(text, "${1}"+cover)
	text = userinfo.ReplaceAllString(text, "://"+cover+"@")
	return beforeProtocol.ReplaceAllString(text, cover+"@${1}(")
}

// hidden is an error whose original text must not be shown.
type hidden struct {
	text string
	err  error
}

func (h hidden) Error() string        { return h.text }
func (h hidden) Is(target error) bool { return errors.Is(h.err, target) }
func (h hidden) As(target any) bool   { return errors.As(h.err, target) }
