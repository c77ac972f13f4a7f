// Package race reports whether the race detector is on. It makes code up to ten times
// slower. So a test that repeats code of one goroutine, in which the detector has nothing
// to find, does so less often with it.
package race
