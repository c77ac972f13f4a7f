package operate

import "errors"

// Act names the person who changes something, and the reason. Both are written to
// the audit table with each change.
type Act struct {
	// Actor is required.
	Actor string

	// Why is required where a message may be lost: to discard, and to edit.
	Why string
}

// Validate returns an error if Actor is empty.
func (a Act) Validate() error {
	if a.Actor == "" {
		return errors.New("Actor is empty: name who does this")
	}
	return nil
}

// ValidateLoss also returns an error if Why is empty. It is for acts that lose
// messages.
func (a Act) ValidateLoss() error {
	err := a.Validate()
	if a.Why == "" {
		err = errors.Join(err, errors.New("Why is empty: say why the messages may be lost"))
	}
	return err
}
