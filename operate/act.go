package operate

import "errors"

// Act contains the name of the person who changes something, and the reason. Each
// change writes both to the audit log.
type Act struct {
	// Actor is the name of the person. It is required.
	Actor string

	// Why is the reason. It is required if a message may be lost, for example to discard or
	// to edit a message.
	Why string
}

// Validate returns an error if Actor is empty.
func (a Act) Validate() error {
	if a.Actor == "" {
		return errors.New("Actor is empty: name who does this")
	}
	return nil
}

// ValidateLoss works like Validate, but also returns an error if Why is empty. It is
// for acts that lose messages.
func (a Act) ValidateLoss() error {
	err := a.Validate()
	if a.Why == "" {
		err = errors.Join(err, errors.New("Why is empty: say why the messages may be lost"))
	}
	return err
}
