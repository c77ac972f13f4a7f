package poison

import (
	"errors"
	"slices"
)

// Act names the person who changes something, and the reason. Both are stored
// with the change in the audit table.
type Act struct {
	// Actor is required.
	Actor string

	// Why is required where a message may be lost: to discard, and to edit.
	Why string
}

func (a Act) validate() error {
	if a.Actor == "" {
		return errors.New("Actor is empty")
	}
	return nil
}

// validateLoss also requires the reason.
func (a Act) validateLoss() error {
	err := a.validate()
	if a.Why == "" {
		err = errors.Join(err, errors.New("Why is empty: say why the message may be lost"))
	}
	return err
}

func validateIDs(ids []int64) error {
	if len(ids) == 0 {
		return errors.New("no IDs")
	}
	return nil
}

// distinct returns each id once and in ascending order. All transactions lock
// rows in this order, or two of them could wait for each other.
func distinct(ids []int64) []int64 { return slices.Compact(slices.Sorted(slices.Values(ids))) }
