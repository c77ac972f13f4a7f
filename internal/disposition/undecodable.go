package disposition

import "context"

type undecodableKey struct{}

// WithUndecodable returns ctx for a message that its transport could not decode, with
// the reason.
func WithUndecodable(ctx context.Context, why error) context.Context {
	return context.WithValue(ctx, undecodableKey{}, why)
}

// Undecodable returns why the message of ctx could not be decoded, or nil if it was
// decoded. No handler may see an undecodable message.
func Undecodable(ctx context.Context) error {
	why, _ := ctx.Value(undecodableKey{}).(error)
	return why
}
