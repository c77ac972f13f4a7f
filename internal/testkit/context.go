package testkit

import (
	"context"
	"sync"
	"sync/atomic"
)

// WatchedContext is a context that counts the contexts and functions that wait for its
// end. If the code under test has finished and the context has not ended, each context
// and function that is still counted is a leak.
type WatchedContext struct {
	context.Context

	watches atomic.Int64
}

// Watch returns a context that ends with ctx.
func Watch(ctx context.Context) *WatchedContext { return &WatchedContext{Context: ctx} }

// Watches returns how many contexts and functions wait for the end of w.
func (w *WatchedContext) Watches() int64 { return w.watches.Load() }

// Value returns nil. Otherwise package context would find the inner context through
// Value, and would not call AfterFunc.
func (w *WatchedContext) Value(any) any { return nil }

// AfterFunc implements an interface of package context, see context.AfterFunc.
func (w *WatchedContext) AfterFunc(f func()) (stop func() bool) {
	w.watches.Add(1)
	end := context.AfterFunc(w.Context, f)
	forget := sync.OnceFunc(func() { w.watches.Add(-1) })
	return func() bool {
		forget()
		return end()
	}
}
