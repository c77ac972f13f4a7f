// Package fields is what constructors say of the fields of a Config.
package fields

import "strings"

// Refused returns err with the name of the package in front of each line. Each is
// about a field, and a Config of another package has fields of that name too.
func Refused(pkg string, err error) error { return &refused{pkg + ": ", err} }

type refused struct {
	prefix string
	err    error
}

func (r *refused) Error() string {
	return r.prefix + strings.ReplaceAll(r.err.Error(), "\n", "\n"+r.prefix)
}

func (r *refused) Unwrap() error { return r.err }
