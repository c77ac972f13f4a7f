package pending

import "errors"

var (
	// ErrNotFound means that the outbox has no message with this ID. The message may have
	// been sent, or may be a dead letter.
	ErrNotFound = errors.New("not found")

	// ErrNeedsForce means that a forwarder may be sending the message. CancelMatching with
	// Plan.Force can cancel the message. Cancel never does.
	ErrNeedsForce = errors.New("a forwarder may be sending it: stop the forwarders, " +
		"wait until it backs off, or use CancelMatching with Plan.Force")

	// ErrNotPaused means that the topic or the tenant is not paused.
	ErrNotPaused = errors.New("not paused")

	// ErrMaybeSent means that a commit took so long that a cancelled message may have
	// become due during the commit, and may have been sent.
	ErrMaybeSent = errors.New("the commit took too long, the cancelled messages may have been sent as well")
)
