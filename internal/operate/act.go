// Package operate holds what an operator's calls on stored messages have in
// common: who acts and why, which rows, and at which rate.
package operate

import "errors"

// Act is the person who does something to stored messages, and the reason. Each
// act is written to the audit table.
type Act struct {
	Actor string
	Why   string
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
