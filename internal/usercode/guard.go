// Package usercode is about what a user passes to this module: functions and errors, whose code may
// panic, the fields of a Config, data source names with their passwords, publishers and subscribers.
package usercode

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// ErrExited is the error of a call that ended its goroutine with runtime.Goexit, and has neither
// returned nor panicked.
var ErrExited = errors.New("the call did not return, it ended its goroutine: " +
	"return an error in place of runtime.Goexit, which t.FailNow and t.Skip call, too")

// Run works like [Guarded], in a goroutine of its own, so that it returns an error if f calls
// runtime.Goexit, which no function can stop.
func Run(f func() error) error {
	err := ErrExited
	done := make(chan struct{})
	go func() {
		defer close(done)
		GrowStack()
		err = Guarded(f)
	}()
	<-done
	return err
}

// GrowStack gives a new goroutine a stack of 8 KiB at once, which most handlers need. Otherwise the
// stack grows in steps deep in the calls, and each step copies all of their frames: up to a tenth of
// the processor time of a message. A larger stack costs more than it saves.
//
//go:noinline
func GrowStack() {
	var room [3584]byte // a stack of 4 KiB has no room for it
	runtime.KeepAlive(&room)
}

// Guarded calls f, code of the user. It returns its error as [Guard] does, or a [*PanicError].
func Guarded(f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = newPanic(value)
		}
	}()
	return Guard(f())
}

// Guard returns an error with the text of err, whose methods are code of the user: each may panic,
// and outside of the handler's call this would end the process. Error is called once, here, and an
// Is, As or Unwrap that panics matches nothing.
//
// The returned error has no method Unwrap, because errors.Is and errors.As would then call the
// methods of err themselves.
func Guard(err error) error {
	if isGuarded(err) {
		return err
	}
	g := &guarded{err: err, typ: fmt.Sprintf("%T", err)}
	if !returns(func() { g.text = err.Error() }) {
		g.text = "error of type " + g.typ + ", whose method Error panicked"
	}
	returns(func() { g.typ = TypeName(err) })
	return g
}

func isGuarded(err error) bool {
	switch err.(type) { //nolint:errorlint // only the outermost error matters
	case nil, *guarded, *PanicError:
		return true
	}
	return err == ErrExited //nolint:errorlint // only the outermost error matters
}

// returns calls f in another goroutine, and reports whether f returned.
func returns(f func()) (returned bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }() // the value is code of the user, too
		f()
		returned = true
	}()
	<-done
	return returned
}

type guarded struct {
	err       error
	text, typ string
}

func (g *guarded) Error() string { return g.text }

func (g *guarded) Is(target error) (matches bool) {
	returns(func() { matches = errors.Is(g.err, target) })
	return matches
}

func (g *guarded) As(target any) (matches bool) {
	returns(func() { matches = errors.As(g.err, target) })
	return matches
}

// Original returns the user's error in a guarded error, or err itself. Its methods may panic, so
// use it only in [Run].
func Original(err error) error {
	if p, ok := err.(*PanicError); ok && p.cause != nil { //nolint:errorlint // only the outermost error matters
		err = p.cause
	}
	if g, ok := err.(*guarded); ok { //nolint:errorlint // only the outermost error matters
		return g.err
	}
	return err
}

// TypeName returns the name of the type of the innermost error that err wraps.
func TypeName(err error) string {
	if g, ok := err.(*guarded); ok { //nolint:errorlint // errors.As would find the guarded error of an inner call
		return g.typ
	}
	if inner := errors.Unwrap(err); inner != nil {
		return TypeName(inner)
	}
	return fmt.Sprintf("%T", err)
}

// PanicError is the error of a call of the user's code that panicked.
type PanicError struct {
	Stack []byte

	text  string
	cause error // the value of the panic if it is an error, otherwise nil
}

func (p *PanicError) Error() string { return p.text }

// Unwrap returns the value of the panic if it is an error, and nil otherwise.
func (p *PanicError) Unwrap() error { return p.cause }

func newPanic(value any) *PanicError {
	p := &PanicError{Stack: debug.Stack()}
	if err, ok := value.(error); ok {
		p.cause = Guard(err)
		p.text = "panic: " + p.cause.Error()
	} else if !returns(func() { p.text = fmt.Sprintf("panic: %v", value) }) { // fmt calls the method String
		p.text = fmt.Sprintf("panic with a value of type %T", value)
	}
	return p
}

// Stack returns the stack of the panic that err wraps, or "".
func Stack(err error) string {
	if p, ok := errors.AsType[*PanicError](err); ok {
		return string(p.Stack)
	}
	return ""
}
