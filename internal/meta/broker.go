package meta

// What the broker says about a delivery. The marshaler sets them; they are
// never taken from a message's own headers.
const (
	// Redelivered is "true" when the broker has delivered the message before.
	Redelivered = "once_redelivered"

	// DeliveryCount is how often the broker has delivered the message before,
	// where it counts that.
	DeliveryCount = "once_delivery_count"
)
