package forwarder

// Why a letter is dead: Letter.Reason. What was said about it in particular is
// in Letter.Error.
const (
	// ReasonExhausted: it was refused as often as Config.MaxAttempts allows.
	ReasonExhausted = "exhausted"

	// ReasonUnacceptable: no broker will ever take it.
	ReasonUnacceptable = "unacceptable"

	// ReasonMalformed: package mover found no envelope of the stock forwarder,
	// and what is stored is its raw form.
	ReasonMalformed = "malformed"

	// ReasonInvalid: package mover found a message that the outbox refuses.
	ReasonInvalid = "invalid"
)

// reasons are all of them.
var reasons = []string{ReasonExhausted, ReasonUnacceptable, ReasonMalformed, ReasonInvalid} //nolint:gochecknoglobals // a constant
