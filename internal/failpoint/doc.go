// Package failpoint defines points in the code, between two effects, at which a test
// can kill the process. A program that is built with the tag "failpoints" kills itself
// with SIGKILL at the point that ONCE_FAILPOINT names. "name:3" kills it when it
// reaches the point for the third time. Without the tag a point does nothing.
//
// To read the code, start with points.go (the list), then on.go and off.go.
package failpoint

// Variable is the environment variable that names the point.
const Variable = "ONCE_FAILPOINT"

// Freezes is the environment variable that makes the process stop (SIGSTOP) instead of
// die.
const Freezes = "ONCE_FAILPOINT_FREEZES"

// Reached begins the line on standard error before the process dies or stops; the name
// of the point follows.
const Reached = "failpoint reached: "
