// Package badinput tests bad input: rows that were edited by hand, deliveries of
// foreign senders, invalid configurations and invalid command lines. Each case states
// the expected result. Each bad message is sent between two valid messages, and must
// not affect them.
package badinput
