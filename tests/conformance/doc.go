// Package conformance tests the promises of a consumer while its process is
// killed at every step, on each kind of database.
package conformance
