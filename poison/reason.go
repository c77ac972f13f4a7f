package poison

import "github.com/watermill-once/once/internal/chain"

// Reasons for which a message is in quarantine, see Entry.Reason here and in package
// operate/quarantine. Entry.Error has the details.
const (
	// ReasonExhausted: the handler has failed as many times as retry's policy allows.
	ReasonExhausted = chain.ReasonExhausted

	// ReasonFailed: the handler failed, and the middleware chain contains no retry.
	ReasonFailed = chain.ReasonFailed

	// ReasonPermanent: no attempt can succeed. The handler returned retry.Permanent, or produced
	// messages that cannot be published, or the message's version cannot be used
	// (sequence.ErrInvalidVersion).
	ReasonPermanent = chain.ReasonPermanent

	// ReasonCrashed: processes died while the handler ran, as often as retry's CrashBudget allows.
	ReasonCrashed = chain.ReasonCrashed

	// ReasonInvalidID: the inbox cannot store the message's id, for example because it is empty.
	ReasonInvalidID = chain.ReasonInvalidID

	// ReasonCollision: the consumer has handled another message with the same id.
	ReasonCollision = chain.ReasonCollision

	// ReasonUndecodable: the transport could not decode the message, and the entry contains its raw
	// form, or the stored form of a parked message is damaged.
	ReasonUndecodable = chain.ReasonUndecodable

	// ReasonGap: an earlier version of the message's aggregate did not arrive in
	// time, or a later version was applied without it, see package sequence.
	ReasonGap = chain.ReasonGap

	// ReasonStale: the message was replayed, but its handler was not called, because its
	// version is not above the last applied version, see package sequence.
	ReasonStale = chain.ReasonStale

	// ReasonCancelled: an operator cancelled the message while it waited, see package parked.
	ReasonCancelled = chain.ReasonCancelled
)
