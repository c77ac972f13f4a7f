package dialect

import "context"

// Check is a statement that fails if the current transaction is not the transaction
// that was begun: a handler may have ended it with a statement, and begun another.
type Check struct {
	SQL string

	// Mark is the statement that marks the transaction for SQL, or "" if no separate
	// statement is needed.
	Mark string

	// Sent says that the driver sends SQL together with COMMIT, see package lazytx.
	Sent bool
}

type checkKey struct{}

// WithCheck passes a check to the driver of the transaction that is begun with the
// returned context.
func WithCheck(ctx context.Context, c *Check) context.Context {
	return context.WithValue(ctx, checkKey{}, c)
}

// CheckOf returns the check in ctx, or nil.
func CheckOf(ctx context.Context) *Check {
	c, _ := ctx.Value(checkKey{}).(*Check)
	return c
}
