// Package undecided tests that no failure of a handler is retried forever without
// counting an attempt. It tries every kind of error with every driver, and with every
// way to handle messages.
package undecided
