// Package badinput has tables of bad input: rows edited by hand, deliveries of
// foreign senders, invalid configurations and command lines. Each case states
// the expected result. A bad message is between two valid messages, which it
// must not affect.
package badinput
