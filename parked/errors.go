package parked

import "errors"

var (
	// ErrNotFound says that there is no parked message with this ID. Its consumer may
	// have handled it.
	ErrNotFound = errors.New("not found")

	// ErrEnded says that the message is neither waiting nor held: it is in quarantine,
	// where package poison works on it, or it was resolved or discarded.
	ErrEnded = errors.New("neither waiting nor held")

	// ErrHeld says that a held message cannot run now: it runs when the message that it
	// waits for, Message.BlockedBy, leaves the head of the ordering key.
	ErrHeld = errors.New("held behind another message of its ordering key")

	// ErrClaimed says that a consumer is handling the message, or that another
	// transaction is changing it.
	ErrClaimed = errors.New("a consumer is handling it: try again when that has ended, or stop the consumer and wait for its lease")

	// ErrHandled says that the inbox has the id of the message: the consumer has handled
	// the message or a copy of it. The consumer removes the row when it claims it next.
	ErrHandled = errors.New("the consumer has handled it")

	// ErrConsumerNotFound says that no consumer is registered under this name for this
	// topic.
	ErrConsumerNotFound = errors.New("no such consumer")

	// ErrRunning says that the consumer runs, or has run in the last two minutes.
	ErrRunning = errors.New("the consumer is running")

	// ErrNotEmpty says that the consumer has messages that are waiting, held or in
	// quarantine.
	ErrNotEmpty = errors.New("the consumer has messages")
)
