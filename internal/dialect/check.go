package dialect

import "context"

// Check is a statement that fails if a transaction is not the one that was
// begun: whoever it was given to may have ended it with a statement, and begun
// another one.
type Check struct {
	SQL string

	// Mark is the statement before it by which it knows the transaction, if one is
	// sent for that alone.
	Mark string

	// Sent says that the driver sends it along with the COMMIT, see package
	// lazytx.
	Sent bool
}

type checkKey struct{}

// WithCheck gives a check to the driver of the transaction that is begun with
// the context.
func WithCheck(ctx context.Context, c *Check) context.Context {
	return context.WithValue(ctx, checkKey{}, c)
}

// CheckOf returns the check of [WithCheck]; nil if there is none.
func CheckOf(ctx context.Context) *Check {
	c, _ := ctx.Value(checkKey{}).(*Check)
	return c
}
