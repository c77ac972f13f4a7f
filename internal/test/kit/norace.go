//go:build !race

package kit

// Race says whether the race detector is on.
const Race = false
