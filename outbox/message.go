package outbox

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/messageid"
)

// NewID returns an id for a message: a UUID of version 7, which begins with the
// time in milliseconds. Tables that remember such ids grow at one end, and can
// forget them a day at a time, see schema.ByDay. It is what NewUUID of
// Watermill's cqrs marshalers can be set to.
func NewID() string { return messageid.New() }

// NewMessage returns a message with an id of [NewID].
func NewMessage(payload []byte) *message.Message { return message.NewMessage(NewID(), payload) }
