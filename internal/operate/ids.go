// Package operate holds what the calls of packages deadletter, pending, parked and poison on stored
// messages have in common: which rows, and at which rate.
package operate

import (
	"errors"
	"slices"
)

// Distinct returns each ID once, in ascending order, or an error if ids is empty.
// All transactions lock rows in this order, so that two of them cannot wait
// for each other.
func Distinct(ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, errors.New("no IDs: name at least one")
	}
	return slices.Compact(slices.Sorted(slices.Values(ids))), nil
}
