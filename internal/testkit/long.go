package testkit

import "testing"

// Long skips a slow test under go test -short, which make test uses. A test is slow if
// it kills processes, runs a matrix of cases, or waits for a long pause. In a matrix,
// call Long in all subtests except one, so that make test runs one case. Main does not
// count these tests as skipped, because no server is missing.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs in make test-all")
	}
}

// Sized returns small under go test -short, and otherwise full. It is for the sizes of a
// test that shows the same with fewer rows or rounds, only with less certainty.
func Sized(small, full int) int {
	if testing.Short() {
		return small
	}
	return full
}
