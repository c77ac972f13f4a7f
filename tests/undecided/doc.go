// Package undecided tests that no failure of a handler is tried for ever
// without being charged: every kind of error, with every driver, in every way
// to handle messages.
package undecided
