package outbox

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/messageid"
)

// NewID returns a new message id: a UUID of version 7, which begins with the time in
// milliseconds. New ids are added at the end of an index, and the inbox can be
// partitioned by day, see schema.ByDay. To get such ids from Watermill's cqrs
// marshalers, set their field NewUUID to NewID.
func NewID() string { return messageid.New() }

// NewMessage returns a message with an id from [NewID].
func NewMessage(payload []byte) *message.Message { return message.NewMessage(NewID(), payload) }
