// Package operate contains the types that packages deadletter, pending, parked and
// poison share: who changes messages and why, how messages are replayed, and the result
// of a dry run. Each of these packages declares aliases for these types.
//
// To read the code, start with act.go, then plan.go, part.go and group.go. replay.go has
// the states of a replay.
package operate
