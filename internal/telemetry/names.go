package telemetry

// Attributes of metrics and spans. The second group belongs to OpenTelemetry's
// semantic conventions.
const (
	Outcome  = "once.outcome"
	Reason   = "once.reason"
	Attempt  = "once.attempt"
	Consumer = "once.consumer"
	Since    = "once.since"
	State    = "once.state"

	Topic      = "messaging.destination.name"
	MessageID  = "messaging.message.id"
	BodySize   = "messaging.message.body.size"
	BatchCount = "messaging.batch.message_count"
	ErrorType  = "error.type"

	consumerGroup = "messaging.consumer.group.name"
)

// Ok and Failed are the outcomes of work that either succeeds or fails. Other kinds of
// work have their own outcomes.
const (
	Ok = iota
	Failed
)

// Done returns the label of the outcomes Ok and Failed.
func Done() Label { return Label{Outcome, []string{Ok: "ok", Failed: "failed"}} }

// Succeeded returns Ok if err is nil, and Failed otherwise.
func Succeeded(err error) int {
	if err != nil {
		return Failed
	}
	return Ok
}
