package dialect

import "context"

// Late describes a statement that the driver may send together with COMMIT, see package
// lazytx. Without that package the statement is executed at once.
type Late struct {
	// Head is the length of the beginning of the statement. If two statements that
	// follow each other have the same beginning, the driver sends one statement, with
	// the rest of both, separated by a comma.
	Head int

	// Failed returns the error for the caller, if the statement has failed with err.
	Failed func(err error) error
}

type lateKey struct{}

// SendLate returns a context for a statement without arguments whose result is not
// needed. The driver may send it later, but in the same transaction.
func SendLate(ctx context.Context, l *Late) context.Context {
	return context.WithValue(ctx, lateKey{}, l)
}

// LateOf returns the Late in ctx, or nil.
func LateOf(ctx context.Context) *Late {
	l, _ := ctx.Value(lateKey{}).(*Late)
	return l
}
