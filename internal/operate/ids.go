// Package operate contains code that packages deadletter, pending, parked and poison
// share: it selects stored messages, limits the rate of changes, and writes the audit
// log.
//
// To read the code, start with filter.go, conditions.go and window.go (searches). Then
// read rate.go, audit.go and unblock.go (changes).
package operate

import (
	"errors"
	"slices"
)

// Distinct returns each ID once, in ascending order. If ids is empty, it returns an
// error. All transactions lock rows in this order, so that two transactions cannot
// deadlock.
func Distinct(ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, errors.New("no IDs: name at least one")
	}
	return slices.Compact(slices.Sorted(slices.Values(ids))), nil
}
