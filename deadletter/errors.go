package deadletter

import "errors"

var (
	// ErrNotFound says that no row has this ID.
	ErrNotFound = errors.New("not found")

	// ErrNeedsForce says that ReplayMatching replays a message only with
	// Plan.Force, and Replay never does: a consumer could handle the message a
	// second time, or the outbox would have refused it.
	ErrNeedsForce = errors.New("can only be replayed by ReplayMatching with Plan.Force")

	// ErrNotBlocked says that no dead letter blocks an ordering key.
	ErrNotBlocked = errors.New("no dead letter blocks this ordering key")
)
