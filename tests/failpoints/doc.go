// Package failpoints tests that no message is lost or applied twice if the
// process is killed at any point of internal/failpoint.
package failpoints
