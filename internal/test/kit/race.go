//go:build race

package kit

// Race says whether the race detector is on. The detector makes code up to ten times
// slower, and has nothing to find in code that runs on one goroutine. So a test that
// repeats such code does so less often with the detector.
const Race = true
