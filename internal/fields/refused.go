// Package fields formats two things: the errors of constructors for invalid fields of a
// Config, and the log fields of a message.
package fields

import "strings"

// Refused returns err with the package name before each line. Each line is about one
// field. Several packages have a Config with a field of the same name, so the package
// name shows which field is meant.
func Refused(pkg string, err error) error { return &refused{pkg + ": ", err} }

type refused struct {
	prefix string
	err    error
}

func (r *refused) Error() string {
	return r.prefix + strings.ReplaceAll(r.err.Error(), "\n", "\n"+r.prefix)
}

func (r *refused) Unwrap() error { return r.err }
