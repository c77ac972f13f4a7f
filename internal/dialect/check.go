package dialect

import "context"

// Check is a statement that fails if the current transaction is not the one that was
// begun. For example, a handler may have executed COMMIT as a statement, and then
// BEGIN.
type Check struct {
	SQL string

	// Mark is a statement that marks the transaction. Later the statement in the field SQL
	// checks whether the mark is still there. It is "" if no separate statement is needed.
	Mark string

	// Sent means that the driver sends the statement in the field SQL together with COMMIT,
	// see package lazytx.
	Sent bool
}

type checkKey struct{}

// WithCheck returns a context for a transaction. The driver finds the check c in this
// context.
func WithCheck(ctx context.Context, c *Check) context.Context {
	return context.WithValue(ctx, checkKey{}, c)
}

// CheckOf returns the check in ctx, or nil.
func CheckOf(ctx context.Context) *Check {
	c, _ := ctx.Value(checkKey{}).(*Check)
	return c
}
