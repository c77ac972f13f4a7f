// Package operate contains the types that packages dead, outbox, parked and
// quarantine share: who changes messages and why, how messages are replayed, and the result
// of a dry run. Each of these packages declares aliases for these types.
package operate
