package disposition

import "context"

type unrunnableKey struct{}

// WithUnrunnable returns ctx for a message that no handler may run, with the reason.
func WithUnrunnable(ctx context.Context, why *Error) context.Context {
	return context.WithValue(ctx, unrunnableKey{}, why)
}

// WithUndecodable is [WithUnrunnable] for a message that its transport could not
// decode.
func WithUndecodable(ctx context.Context, why error) context.Context {
	return WithUnrunnable(ctx, &Error{Kind: Permanent, Reason: ReasonUndecodable, Err: why})
}

// Unrunnable returns why no handler may run the message of ctx, as an [*Error], or
// nil if a handler may run it.
func Unrunnable(ctx context.Context) error {
	if why, ok := ctx.Value(unrunnableKey{}).(*Error); ok {
		return why
	}
	return nil
}
