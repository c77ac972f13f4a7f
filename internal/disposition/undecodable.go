package disposition

import "context"

type undecodableKey struct{}

// WithUndecodable returns ctx for a message that its transport could not
// decode, for that reason.
func WithUndecodable(ctx context.Context, why error) context.Context {
	return context.WithValue(ctx, undecodableKey{}, why)
}

// Undecodable returns why the message of ctx could not be decoded; nil if it
// was. No handler is to see one that was not.
func Undecodable(ctx context.Context) error {
	why, _ := ctx.Value(undecodableKey{}).(error)
	return why
}
