package dead

import (
	"errors"

	"github.com/watermill-once/once/internal/outboxrow"
)

// ErrNotBlocked means that no dead letter blocks the ordering key.
var ErrNotBlocked = errors.New("no dead letter blocks this ordering key")

// Reasons why a message became a dead letter, see Letter.Reason. Letter.Error has the details.
const (
	// ReasonExhausted: the broker refused it as often as forwarder.Config.MaxAttempts allows.
	ReasonExhausted = outboxrow.DeadExhausted

	// ReasonUnacceptable: no broker will ever accept the message.
	ReasonUnacceptable = outboxrow.DeadUnacceptable

	// ReasonMalformed: package mover found a message that is not an envelope of Watermill's own
	// forwarder. The letter contains its raw form.
	ReasonMalformed = outboxrow.DeadMalformed

	// ReasonInvalid: package mover found a message that the outbox refuses.
	ReasonInvalid = outboxrow.DeadInvalid

	// ReasonCancelled: an operator cancelled the message, see package operate/outbox. Letter.Error
	// contains the operator's name and reason.
	ReasonCancelled = outboxrow.DeadCancelled
)

var reasons = []string{ReasonExhausted, ReasonUnacceptable, ReasonMalformed, ReasonInvalid, ReasonCancelled}
