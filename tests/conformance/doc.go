// Package conformance holds the consumer to its promises while its process is
// killed at every step, on each kind of database.
package conformance
