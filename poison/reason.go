package poison

import "github.com/watermill-once/once/internal/disposition"

// Why a message is in quarantine: Entry.Reason. What is wrong in particular is
// in Entry.Error.
const (
	// ReasonExhausted: the handler failed as often as retry's policy allows.
	ReasonExhausted = disposition.ReasonExhausted

	// ReasonFailed: the handler failed, and there is no retry in the chain.
	ReasonFailed = disposition.ReasonFailed

	// ReasonPermanent: the handler said by retry.Permanent that no attempt can
	// succeed, or produced messages that cannot be sent.
	ReasonPermanent = disposition.ReasonPermanent

	// ReasonCrashed: the process ended while the handler ran, as often as
	// retry's CrashBudget allows.
	ReasonCrashed = disposition.ReasonCrashed

	// ReasonInvalidID: the message has an id that the inbox cannot keep, such
	// as none.
	ReasonInvalidID = disposition.ReasonInvalidID

	// ReasonCollision: the consumer has handled another message of this id.
	ReasonCollision = disposition.ReasonCollision

	// ReasonUndecodable: the transport could not decode the message, and what
	// is stored is its raw form; or it was parked, and what is stored of it is
	// damaged.
	ReasonUndecodable = disposition.ReasonUndecodable

	// ReasonGap: a version of the aggregate before the message's did not come in
	// time, or a higher version was applied without it, see package sequence.
	ReasonGap = disposition.ReasonGap
)
