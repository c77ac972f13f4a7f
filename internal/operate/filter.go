package operate

import (
	"errors"
	"fmt"
	"time"
)

// Selection contains the fields that all filters have in common.
type Selection struct {
	Limit   int
	AfterID int64

	// All is the value of the filter's field All. Everything is true if the filter has no
	// other condition.
	All, Everything bool
}

// Validate returns an error that names each invalid field.
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

// ValidateChange returns an error if the filter selects everything and All is false,
// because a forgotten condition must not change every message.
func (s Selection) ValidateChange() error {
	if s.Everything && !s.All {
		return errors.New("the Filter has no condition: set All to select everything")
	}
	return nil
}

// ValidateSpan returns an error if the time span from after to before is empty. The two
// times are the values of two fields, for example CreatedAfter and CreatedBefore. The
// parameter name is the common beginning of the names of the two fields, in this
// example "Created".
func ValidateSpan(name string, after, before time.Time) error {
	if !before.IsZero() && !after.Before(before) {
		return fmt.Errorf("%[1]sBefore is not after %[1]sAfter", name)
	}
	return nil
}
