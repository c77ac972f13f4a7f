// Package failpoints tests what becomes of messages when the process is killed
// between any two effects: at every point of internal/failpoint.
package failpoints
