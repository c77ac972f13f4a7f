package disposition

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"
)

// PanicError is the error of an attempt whose handler panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (p *PanicError) Error() string { return fmt.Sprintf("panic: %v", p.Value) }

// Unwrap returns the value of the panic if it is an error, and nil otherwise.
func (p *PanicError) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// Stack returns the stack of the panic that err wraps, for the log. If err wraps no
// panic, it returns "".
func Stack(err error) string {
	if p, ok := errors.AsType[*PanicError](err); ok {
		return string(p.Stack)
	}
	return ""
}

// Call calls h. If h panics, Call returns the panic as an error. If an outer middleware
// recovered the panic instead, the message would be neither retried nor quarantined.
// For an unrunnable message, Call returns the reason and does not call h.
func Call(h message.HandlerFunc, msg *message.Message) (produced []*message.Message, err error) {
	if why := Unrunnable(msg.Context()); why != nil {
		return nil, why
	}
	defer func() {
		if value := recover(); value != nil {
			produced, err = nil, &PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	return h(msg)
}
