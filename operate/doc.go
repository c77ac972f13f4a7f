// Package operate has the types that packages deadletter, pending, parked and poison
// share: who changes messages and why, how messages are replayed, and what a dry run
// shows. These packages have aliases of the types.
package operate
