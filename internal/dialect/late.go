package dialect

import "context"

// Late describes a statement that the driver may send together with COMMIT, see package
// lazytx. Without package lazytx, the statement is executed immediately.
type Late struct {
	// Head is the length, in bytes, of the beginning of the statement. If two consecutive
	// statements have the same beginning, the driver sends them as one statement: the
	// beginning once, and then the rest of each statement, separated by a comma.
	Head int

	// Failed returns the error for the caller if the statement has failed with err.
	Failed func(err error) error
}

type lateKey struct{}

// SendLate returns a context for a statement that has no arguments, and whose result is
// not needed. The driver may send the statement later, but in the same transaction.
func SendLate(ctx context.Context, l *Late) context.Context {
	return context.WithValue(ctx, lateKey{}, l)
}

// LateOf returns the Late in ctx, or nil.
func LateOf(ctx context.Context) *Late {
	l, _ := ctx.Value(lateKey{}).(*Late)
	return l
}
