package disposition

import "context"

type unrunnableKey struct{}

// WithUnrunnable returns a copy of ctx that marks its message as unrunnable for the given
// reason.
func WithUnrunnable(ctx context.Context, reason *Error) context.Context {
	return context.WithValue(ctx, unrunnableKey{}, reason)
}

// WithUndecodable is like [WithUnrunnable], for a message that its transport could not
// decode.
func WithUndecodable(ctx context.Context, why error) context.Context {
	return WithUnrunnable(ctx, &Error{Kind: Permanent, Reason: ReasonUndecodable, Err: why})
}

// Unrunnable returns the reason why no handler may run the message of ctx, as an
// [*Error]. It returns nil if a handler may run the message.
func Unrunnable(ctx context.Context) error {
	if why, ok := ctx.Value(unrunnableKey{}).(*Error); ok {
		return why
	}
	return nil
}
