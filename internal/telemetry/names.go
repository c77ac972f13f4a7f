package telemetry

// Attributes of instruments and spans. From Topic on they are OpenTelemetry's own.
const (
	Outcome  = "once.outcome"
	Reason   = "once.reason"
	Attempt  = "once.attempt"
	Consumer = "once.consumer"

	Topic      = "messaging.destination.name"
	MessageID  = "messaging.message.id"
	BodySize   = "messaging.message.body.size"
	BatchCount = "messaging.batch.message_count"
	ErrorType  = "error.type"

	consumerGroup = "messaging.consumer.group.name"
)

// Ok and Failed are the outcomes of work that has no other.
const (
	Ok = iota
	Failed
)

// Done is the label of work that is either done or failed.
func Done() Label { return Label{Outcome, []string{Ok: "ok", Failed: "failed"}} }

// Succeeded is the series of [Done] for work that returned err.
func Succeeded(err error) int {
	if err != nil {
		return Failed
	}
	return Ok
}
