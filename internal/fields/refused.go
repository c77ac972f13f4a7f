// Package fields formats the errors of constructors about the fields of a Config, and the
// fields of log lines about a message.
package fields

import "strings"

// Refused returns err with the package name before each line. Each line is about
// one field, and the Config of another package may have a field of the same name.
func Refused(pkg string, err error) error { return &refused{pkg + ": ", err} }

type refused struct {
	prefix string
	err    error
}

func (r *refused) Error() string {
	return r.prefix + strings.ReplaceAll(r.err.Error(), "\n", "\n"+r.prefix)
}

func (r *refused) Unwrap() error { return r.err }
