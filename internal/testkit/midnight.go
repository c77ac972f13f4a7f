package testkit

import (
	"testing"
	"time"
)

// WithinADay waits for the next day in UTC if the current day is about to end. Use it in
// a test that must not see a change of the date.
func WithinADay(t testing.TB) {
	t.Helper()
	tomorrow := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	if left := time.Until(tomorrow); left < 2*time.Minute {
		t.Logf("waiting %v for midnight", left)
		<-time.After(left)
	}
}
