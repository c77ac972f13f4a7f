package outbox_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/watermill-once/once/outbox"
)

// New ids ascend with time, so rows in the order of their ids are also in the order of
// their times.
func TestNewIDsAscendWithTime(t *testing.T) {
	before, last := time.Now().Add(-time.Millisecond), ""
	for range 10_000 {
		msg := outbox.NewMessage([]byte("body"))
		id, err := uuid.Parse(msg.UUID)
		if err != nil || id.Version() != 7 || id.String() != msg.UUID {
			t.Fatalf("%q is no UUID of version 7 in lower case: %v", msg.UUID, err)
		}
		if at := time.Unix(id.Time().UnixTime()); at.Before(before) || at.After(time.Now().Add(time.Millisecond)) {
			t.Fatalf("%q is of %v", msg.UUID, at)
		}
		if msg.UUID <= last || string(msg.Payload) != "body" {
			t.Fatalf("%q after %q, with %q", msg.UUID, last, msg.Payload)
		}
		last = msg.UUID
	}
}
