// Package defaults contains the default values that several packages need.
package defaults

import "time"

const (
	// MaxDuplicateAge is the default of dedup.Config.MaxDuplicateAge.
	MaxDuplicateAge = 7 * 24 * time.Hour

	// SequenceWindow is the default of sequence.Config.Window. It is longer than the time
	// for which the default policy of package retry retries a message.
	SequenceWindow = 15 * time.Minute
)
