package usercode

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// unreadable replaces an error with a data source name.
const unreadable = "the data source name cannot be parsed%s (it is not shown because it may contain a password): " +
	"in a URL percent-encode user, password and database; in key=value pairs quote values with blanks"

var (
	errUnreadable = fmt.Errorf(unreadable, "")

	// wrongValue matches lib/pq's error about a wrong value, which may be the end of an unquoted
	// password with blanks.
	wrongValue = regexp.MustCompile(`^pq: wrong value for (\S+): `)

	// quotes are parts of errors of lib/pq and pgx about a data source name that cannot be parsed,
	// most of which contain it.
	quotes = []string{"in connection info string", "literal in connection string", "missing character after backslash", "cannot parse `"}
)

// HideDSN returns err without the contents of a data source name. Pass every error of a new
// connection through HideDSN: database/sql parses the name only when it connects, and drivers quote
// a name that they cannot parse.
//
// HideDSN replaces an error about parsing with an error that does not quote the name. In other
// errors it replaces passwords. errors.Is and errors.As still find the driver's error.
// errors.Unwrap does not: otherwise a logger that unwraps errors would log the driver's text.
func HideDSN(err error) error {
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
	if covered := cover(text); covered != text {
		return hidden{text: covered, err: err}
	}
	return err
}

const stars = "***"

var (
	// The end of the value after "password=" is uncertain: an unquoted value with blanks
	// may continue where the next pair seems to begin. So the whole rest is replaced.
	pair = regexp.MustCompile(`(?is)((?:password|pwd)(?:\s*=|["']\s*[:=])\s*)[^\s].*`)

	// A password in a URL may contain "@". So everything up to the last "@" is replaced.
	userinfo = regexp.MustCompile(`(?s)://[^\s/]*:.*@`)

	// beforeProtocol matches MySQL's "user:password@tcp(host)", which has no scheme.
	beforeProtocol = regexp.MustCompile(`(?s)[^\s"'` + "`" + `]*:.*@(\w*)\(`)
)

// cover replaces every part of text that may be a password in a data source name, which
// is a URL or key=value pairs. If it is uncertain where a password begins or ends,
// cover also replaces text that may not belong to it.
func cover(text string) string {
	text = pair.ReplaceAllString(text, "${1}"+stars)
	text = userinfo.ReplaceAllString(text, "://"+stars+"@")
	return beforeProtocol.ReplaceAllString(text, stars+"@${1}(")
}

// hidden is an error whose original text must not be shown.
type hidden struct {
	text string
	err  error
}

func (h hidden) Error() string        { return h.text }
func (h hidden) Is(target error) bool { return errors.Is(h.err, target) }
func (h hidden) As(target any) bool   { return errors.As(h.err, target) }
