// Package gather tells a subscriber how many messages its handler gathers in batches.
// The number is passed in the context of Subscribe.
package gather

import "context"

type key struct{}

// With returns ctx for the Subscribe call of a handler whose batches need messages in
// flight.
func With(ctx context.Context, messages int) context.Context {
	return context.WithValue(ctx, key{}, messages)
}

// Of returns the number of messages that the handler of ctx needs in flight, so that
// its batches can be full. It returns 0 if the handler has no batches.
func Of(ctx context.Context) int {
	messages, _ := ctx.Value(key{}).(int)
	return messages
}
