package operate

import (
	"errors"
	"fmt"
	"time"
)

// Selection is what all filters have in common.
type Selection struct {
	Limit   int
	AfterID int64

	// All is the field of that name. Everything reports whether the filter has no
	// other condition.
	All, Everything bool
}

// Validate returns an error that names each field that cannot be used.
func (s Selection) Validate() error {
	var errs []error
	if s.Limit < 0 {
		errs = append(errs, fmt.Errorf("Limit is %d: negative", s.Limit))
	}
	if s.AfterID < 0 {
		errs = append(errs, fmt.Errorf("AfterID is %d: negative", s.AfterID))
	}
	if s.All && !s.Everything {
		errs = append(errs, errors.New("All is set together with conditions"))
	}
	return errors.Join(errs...)
}

// ValidateChange returns an error if the filter selects everything without All: a
// forgotten condition must not change every message.
func (s Selection) ValidateChange() error {
	if s.Everything && !s.All {
		return errors.New("the Filter has no condition: set All to select everything")
	}
	return nil
}

// ValidateSpan returns an error if no time is between after and before. The fields of
// the filter are the name with After and Before.
func ValidateSpan(name string, after, before time.Time) error {
	if !before.IsZero() && !after.Before(before) {
		return fmt.Errorf("%[1]sBefore is not after %[1]sAfter", name)
	}
	return nil
}
