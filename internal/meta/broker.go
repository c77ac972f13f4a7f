package meta

// Keys that describe a delivery. The marshaler sets them from the broker's data, and
// ignores headers of the message with these names.
const (
	// Redelivered is "true" if the broker has delivered the message before.
	Redelivered = "once_redelivered"

	// DeliveryCount is how many times the broker has delivered the message before. It is
	// missing if the broker does not count deliveries.
	DeliveryCount = "once_delivery_count"
)
