package dedup

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/parked"
)

// AfterCommit registers the function f to be called after the commit of the message's
// transaction and before the message is acked. The parameter ctx must be the context of
// the message. f is called at most once, so use it only for work that may be lost, such
// as clearing a cache, waking another goroutine or counting. f is not called if the
// handler or the commit fails, if the message is a duplicate, or if the process dies
// first. If the connection is lost during the commit, the outcome is unknown, and f is
// not called either. The functions of a failed attempt are discarded, and the next
// attempt registers its own functions.
//
// The functions of a transaction are called in the order in which they were registered,
// and the functions of a batch in the order of its messages. While they run, the
// messages of the transaction are not acked, and the handler's next message waits, so f
// must be quick. If f panics, the panic is logged, and the message remains handled.
//
// AfterCommit returns an error if f is nil, if ctx has no transaction, or if the
// handler has already returned.
func AfterCommit(ctx context.Context, f func()) error {
	if f == nil {
		return errors.New("dedup: AfterCommit: the function is nil")
	}
	if err := parked.AfterCommit(ctx, f); err != nil {
		return fmt.Errorf("dedup: AfterCommit: %w", err)
	}
	return nil
}

// callAfterCommit calls the functions that were registered for a committed transaction.
func (i *Inbox) callAfterCommit(functions []func(), consumer string) {
	for _, f := range functions {
		func() {
			defer func() {
				if value := recover(); value != nil {
					i.config.Logger.Error("Function of AfterCommit panicked", fmt.Errorf("panic: %v", value),
						watermill.LogFields{"consumer": consumer, "stack": string(debug.Stack())})
				}
			}()
			f()
		}()
	}
}
