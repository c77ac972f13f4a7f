// Package failpoint names the steps between two effects at which a test ends
// the process. A program that is built with the tag "failpoints" ends itself
// with SIGKILL when it comes to the point that ONCE_FAILPOINT names, "name:3"
// for the third time that it comes there. Built without the tag, a point is
// nothing.
package failpoint

// Variable is that of the environment which names the point.
const Variable = "ONCE_FAILPOINT"

// Freezes is the variable that has the process stopped instead of ended.
const Freezes = "ONCE_FAILPOINT_FREEZES"

// Reached begins the line that is written to standard error before the process
// ends or stops; the name of the point follows.
const Reached = "failpoint reached: "
