package usercode

import (
	"strings"
	"time"
)

// Defaults that several packages need.
const (
	// DefaultMaxDuplicateAge is the default of dedup.Config.MaxDuplicateAge.
	DefaultMaxDuplicateAge = 7 * 24 * time.Hour

	// DefaultSequenceWindow is the default of sequence.Config.Window, longer than the default
	// policy of package retry retries a message.
	DefaultSequenceWindow = 15 * time.Minute
)

// Refused returns err with the package name before each line, which is about one field: several
// packages have a Config with fields of the same name.
func Refused(pkg string, err error) error { return &refused{pkg + ": ", err} }

type refused struct {
	prefix string
	err    error
}

func (r *refused) Error() string {
	return r.prefix + strings.ReplaceAll(r.err.Error(), "\n", "\n"+r.prefix)
}

func (r *refused) Unwrap() error { return r.err }
