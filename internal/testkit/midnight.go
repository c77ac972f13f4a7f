package testkit

import (
	"testing"
	"time"
)

// WithinADay waits until the day has begun that comes, in UTC, if this one is
// about to end: for a test that reckons with one today.
func WithinADay(t testing.TB) {
	t.Helper()
	tomorrow := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	if left := time.Until(tomorrow); left < 2*time.Minute {
		t.Logf("waiting %v for midnight", left)
		<-time.After(left)
	}
}
