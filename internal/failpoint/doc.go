// Package failpoint defines points in the code at which a test can kill the process. A
// point is between two steps that have an effect, such as two statements. A program
// that is built with the tag "failpoints" kills itself with SIGKILL at the point that
// ONCE_FAILPOINT names. With the value "name:3", it kills itself when it reaches the
// point for the third time. Without the tag, a point does nothing.
//
// To read the code, start with points.go (the list), then on.go and off.go.
package failpoint

// Variable is the environment variable that names the point.
const Variable = "ONCE_FAILPOINT"

// Freezes is an environment variable. If it is set, the process stops (SIGSTOP) instead
// of dying.
const Freezes = "ONCE_FAILPOINT_FREEZES"

// Reached is the beginning of the line that the process writes to standard error before
// it dies or stops. The name of the point follows.
const Reached = "failpoint reached: "
