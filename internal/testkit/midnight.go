package testkit

import (
	"testing"
	"time"
)

// WithinADay waits until midnight UTC if midnight is less than two minutes away. Call
// it in a test that must not see a change of the date.
func WithinADay(t testing.TB) {
	t.Helper()
	tomorrow := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	if left := time.Until(tomorrow); left < 2*time.Minute {
		t.Logf("waiting %v for midnight", left)
		<-time.After(left)
	}
}
