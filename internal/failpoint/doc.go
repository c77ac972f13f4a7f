// Package failpoint defines points in the code at which a test can kill the process. A point is
// between two steps that have an effect, such as two statements. A program that is built with the
// tag "failpoints" kills itself with SIGKILL at the point that the environment variable
// ONCE_FAILPOINT names. With the value "name:3", the program kills itself when it reaches the point
// "name" for the third time. Without the tag, a point does nothing.
package failpoint

// Variable is the name of the environment variable that contains the name of the point.
const Variable = "ONCE_FAILPOINT"

// Freezes is the name of an environment variable. If this variable is set, the process
// stops (SIGSTOP) instead of dying.
const Freezes = "ONCE_FAILPOINT_FREEZES"

// Reached is the beginning of the line that the process writes to standard error before
// it dies or stops. The name of the point follows.
const Reached = "failpoint reached: "
