package outbox

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/messageid"
)

// NewID returns a new message id: a UUID of version 7, which begins with the time in
// milliseconds. Indexes of such ids grow at one end only, and the inbox can be
// partitioned by day, see schema.ByDay. Set NewUUID of Watermill's cqrs marshalers to
// NewID.
func NewID() string { return messageid.New() }

// NewMessage returns a message with an id from [NewID].
func NewMessage(payload []byte) *message.Message { return message.NewMessage(NewID(), payload) }
