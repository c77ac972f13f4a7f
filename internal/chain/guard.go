package chain

import (
	"errors"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/usercode"
)

// Call calls h, and turns a panic or runtime.Goexit into an error, because the message would be
// neither retried nor quarantined. For an unrunnable message it returns the reason instead.
func Call(h message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	return call(Run, h, msg)
}

// Caller returns a function that calls h as [Call] does. If h is the middleware of package retry, it
// does so without another goroutine, because retry has one for each call of the handler.
func Caller(h message.HandlerFunc) func(msg *message.Message) ([]*message.Message, error) {
	run := Run
	if CodeAt(reflect.ValueOf(h).Pointer()).Part == "retry" {
		run = Guarded
	}
	return func(msg *message.Message) ([]*message.Message, error) { return call(run, h, msg) }
}

func call(run func(f func() error) error, h message.HandlerFunc, msg *message.Message) (produced []*message.Message, err error) {
	if why := Unrunnable(msg.Context()); why != nil {
		return nil, why
	}
	if err := run(func() (err error) { produced, err = h(msg); return err }); err != nil {
		return nil, err
	}
	return produced, nil
}

// Run is like usercode.Run. Its error keeps its disposition.
func Run(f func() error) error { return Guard(usercode.Run(f)) }

// Guarded is like usercode.Guarded. Its error keeps its disposition.
func Guarded(f func() error) error { return Guard(usercode.Guarded(f)) }

// Guard is like usercode.Guard. The returned error has the disposition of err.
func Guard(err error) error {
	if v, ok := err.(*Error); ok && v != nil && usercode.Guard(v.Err) == v.Err { //nolint:errorlint // only the outermost error matters
		return err
	}
	guarded := usercode.Guard(err)
	if guarded == nil {
		return nil
	}
	if m, ok := errors.AsType[usercode.Marked](guarded); ok {
		marked := *ofMarked(m)
		marked.Err = guarded
		return &marked
	}
	contended := false
	_ = usercode.Run(func() error { contended = dialect.Conflicted(usercode.Original(guarded)); return nil })
	if contended {
		return &Error{Kind: Undecided, Contended: true, Err: guarded}
	}
	return guarded
}
