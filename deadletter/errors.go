package deadletter

import "errors"

var (
	// ErrNotFound means that no row has this ID.
	ErrNotFound = errors.New("not found")

	// ErrNeedsForce means that only ReplayMatching with Plan.Force can replay a message.
	// Either a consumer could handle the message a second time, or the outbox would refuse
	// the message. Replay never replays such a message.
	ErrNeedsForce = errors.New("can only be replayed by ReplayMatching with Plan.Force")

	// ErrNotBlocked means that no dead letter blocks the ordering key.
	ErrNotBlocked = errors.New("no dead letter blocks this ordering key")
)
