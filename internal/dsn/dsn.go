// Package dsn keeps what data source names hold out of errors.
package dsn

import (
	"errors"
	"net/url"
	"strings"
)

var errUnreadable = errors.New("the data source name cannot be parsed (not shown here, for the password in it): " +
	"in a URL user, password and database have to be percent-encoded, in key=value pairs what has blanks is in quotes")

// Hide returns err, or another one in its place if a driver could not parse its
// data source name: then it quotes what it could not read, which may be the
// password. database/sql has that parsed when a connection is wanted for the
// first time, so this is asked where connections are.
func Hide(err error) error {
	parsing, ok := errors.AsType[*url.Error](err)
	if ok && parsing.Op == "parse" || err != nil && strings.Contains(err.Error(), "connection info string") { // lib/pq's, of pairs
		return errUnreadable
	}
	return err
}
