package poison

import "github.com/watermill-once/once/internal/disposition"

// Reasons for which a message is in quarantine, see Entry.Reason. Entry.Error has
// the details.
const (
	// ReasonExhausted: the handler failed as often as retry's policy allows.
	ReasonExhausted = disposition.ReasonExhausted

	// ReasonFailed: the handler failed, and there is no retry in the chain.
	ReasonFailed = disposition.ReasonFailed

	// ReasonPermanent: the handler returned retry.Permanent, because no attempt can
	// succeed, or it produced messages that cannot be published, or the version of
	// the message cannot be used (sequence.ErrInvalidVersion).
	ReasonPermanent = disposition.ReasonPermanent

	// ReasonCrashed: the process ended during the handler as often as retry's
	// CrashBudget allows.
	ReasonCrashed = disposition.ReasonCrashed

	// ReasonInvalidID: the inbox cannot store the id of the message, for example
	// because it is empty.
	ReasonInvalidID = disposition.ReasonInvalidID

	// ReasonCollision: the consumer has handled another message with this id.
	ReasonCollision = disposition.ReasonCollision

	// ReasonUndecodable: the transport could not decode the message, and the
	// entry has its raw form; or the stored form of a parked message is damaged.
	ReasonUndecodable = disposition.ReasonUndecodable

	// ReasonGap: an earlier version of the message's aggregate did not arrive in
	// time, or a later version was applied without it, see package sequence.
	ReasonGap = disposition.ReasonGap

	// ReasonStale: the message was replayed, and its version is not above the last
	// applied one, so its handler was not called, see package sequence.
	ReasonStale = disposition.ReasonStale

	// ReasonCancelled: somebody cancelled the message while it waited for its
	// consumer, see package parked.
	ReasonCancelled = disposition.ReasonCancelled
)
