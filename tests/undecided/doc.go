// Package undecided tests that no failure of a handler is retried forever
// without a charge: every kind of error, with every driver and every way to
// handle messages.
package undecided
