package disposition

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"
)

// PanicError is a panic of a handler, turned into the error of its attempt.
type PanicError struct {
	Value any
	Stack []byte
}

func (p *PanicError) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Unwrap returns the value that was panicked with, if it was an error.
func (p *PanicError) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Stack returns where the handler panicked that err is of, for the log; "" if it
// is of none.
func Stack(err error) string {
	if p, ok := errors.AsType[*PanicError](err); ok {
		return string(p.Stack)
	}
	return ""
}

// Call calls h and returns its panic as an error. A recoverer further out
// would see the panic too late: it would be neither retried nor quarantined.
// For a message that could not be decoded it returns that, and does not call h.
func Call(h message.HandlerFunc, msg *message.Message) (produced []*message.Message, err error) {
	if why := Undecodable(msg.Context()); why != nil {
		return nil, Forever(ReasonUndecodable, why)
	}
	defer func() {
		if value := recover(); value != nil {
			produced, err = nil, &PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	return h(msg)
}
