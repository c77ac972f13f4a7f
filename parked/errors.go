package parked

import "errors"

var (
	// ErrNotFound means that there is no parked message with this ID. The consumer may have
	// handled the message.
	ErrNotFound = errors.New("not found")

	// ErrEnded means that the message is neither waiting nor held: it is in quarantine,
	// where package poison can change it, or it was resolved or discarded.
	ErrEnded = errors.New("neither waiting nor held")

	// ErrHeld means that a held message cannot be handled now. It is handled when the
	// message for which it waits (Message.BlockedBy) is no longer the head of the ordering
	// key.
	ErrHeld = errors.New("held behind another message of its ordering key")

	// ErrClaimed means that a consumer is handling the message, or that another
	// transaction is changing it.
	ErrClaimed = errors.New("a consumer is handling it: try again when that has ended, or stop the consumer and wait for its lease")

	// ErrHandled means that the inbox contains the id of the message, because the consumer
	// has handled the message or a copy of it. The consumer removes the row when it claims
	// the row the next time.
	ErrHandled = errors.New("the consumer has handled it")

	// ErrConsumerNotFound means that no consumer with this name is registered for this
	// topic.
	ErrConsumerNotFound = errors.New("no such consumer")

	// ErrRunning means that the consumer is running, or was running less than two minutes
	// ago.
	ErrRunning = errors.New("the consumer is running")

	// ErrNotEmpty means that the consumer has messages that are waiting, held or in
	// quarantine.
	ErrNotEmpty = errors.New("the consumer has messages")
)
