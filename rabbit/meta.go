package rabbit

import "github.com/watermill-once/once/internal/meta"

// Metadata that Marshaler.Unmarshal sets from what the broker says about a
// delivery. Headers of these names are never taken over from a message.
const (
	// MetadataRedelivered is "true" when the broker has delivered the message
	// before, else "false". It is always there.
	MetadataRedelivered = meta.Redelivered

	// MetadataDeliveryCount is how often the broker has delivered the message
	// before, in decimal. It is there where the queue counts that (quorum
	// queues do) and the message is redelivered.
	MetadataDeliveryCount = meta.DeliveryCount
)
