package pending

import "errors"

var (
	// ErrNotFound says that the outbox has no message with this ID. It may have been
	// sent, or be a dead letter.
	ErrNotFound = errors.New("not found")

	// ErrNeedsForce says that a forwarder may be sending the message. CancelMatching
	// cancels it only with Plan.Force, and Cancel never does.
	ErrNeedsForce = errors.New("a forwarder may be sending it: stop the forwarders, " +
		"wait until it backs off, or use CancelMatching with Plan.Force")

	// ErrNotPaused says that the topic or the tenant is not paused.
	ErrNotPaused = errors.New("not paused")

	// ErrMaybeSent says that a commit took so long that a cancelled message may have
	// become due and been sent as well.
	ErrMaybeSent = errors.New("the commit took too long, the cancelled messages may have been sent as well")
)
