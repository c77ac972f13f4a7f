// Package dsn keeps what data source names hold out of errors.
package dsn

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// unreadable is what is told in place of an error that quotes a data source
// name.
const unreadable = "the data source name cannot be parsed%s (not shown here, for the password in it): " +
	"in a URL user, password and database have to be percent-encoded, in key=value pairs what has blanks is in quotes"

var (
	errUnreadable = fmt.Errorf(unreadable, "")

	// wrongValue is lib/pq's error about a value. The value may be the end of a
	// password with blanks that nobody quoted.
	wrongValue = regexp.MustCompile(`^pq: wrong value for (\S+): `)

	// quotes are what drivers say of a data source name that they cannot parse,
	// and most of them quote: lib/pq of pairs, and pgx.
	quotes = []string{"in connection info string", "literal in connection string", "missing character after backslash", "cannot parse `"}
)

// Hide returns err without what a data source name holds. Every error of a
// connection that is wanted passes through it: database/sql has the name parsed
// as late as that, and drivers quote what they cannot parse.
//
// An error about parsing is replaced by one that quotes nothing. In any other,
// passwords are covered, and the error that the driver returned can be looked
// for with errors.Is and errors.As but not unwrapped, because a logger that
// follows the chain would tell its text.
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
	// What follows "password=" has no certain end: with blanks in it, it may go
	// on where the next pair seems to begin. So the rest of the text goes too.
	pair = regexp.MustCompile(`(?is)((?:password|pwd)(?:\s*=|["']\s*[:=])\s*)[^\s].*`)

	// A user may stand before the last "@" of a URL, whatever lies between.
	userinfo = regexp.MustCompile(`(?s)://[^\s/]*:.*@`)

	// MySQL's "user:password@tcp(host)", which has no beginning to go by.
	beforeProtocol = regexp.MustCompile(`(?s)[^\s"'` + "`" + `]*:.*@(\w*)\(`)
)

// Cover returns text with what may be a password in it covered: in the URL or
// the pairs of a data source name. It covers too much rather than too little.
func Cover(text string) string {
	text = pair.ReplaceAllString(text, "${1}"+cover)
	text = userinfo.ReplaceAllString(text, "://"+cover+"@")
	return beforeProtocol.ReplaceAllString(text, cover+"@${1}(")
}

// hidden is an error whose text must not be told.
type hidden struct {
	text string
	err  error
}

func (h hidden) Error() string        { return h.text }
func (h hidden) Is(target error) bool { return errors.Is(h.err, target) }
func (h hidden) As(target any) bool   { return errors.As(h.err, target) }
