// Package gather passes a number from a handler to its subscriber: how many messages
// the handler gathers in batches. The context of Subscribe contains this number.
package gather

import "context"

type key struct{}

// With returns a copy of ctx for the Subscribe call of a handler with batches. The
// parameter messages is the number of messages that must be in flight so that the
// batches are full.
func With(ctx context.Context, messages int) context.Context {
	return context.WithValue(ctx, key{}, messages)
}

// Of returns how many messages the handler of ctx needs in flight so that its batches
// are full. It returns 0 if the handler has no batches.
func Of(ctx context.Context) int {
	messages, _ := ctx.Value(key{}).(int)
	return messages
}
