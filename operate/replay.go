package operate

import "errors"

// States of a replay of many messages, in [Report].State.
const (
	// ReplayRunning: a process runs the replay.
	ReplayRunning = "running"

	// ReplayPaused: the replay ended with its context, or by an error.
	ReplayPaused = "paused"

	// ReplayStopped: messages failed again, or somebody stopped the replay.
	ReplayStopped = "stopped"

	// ReplayAbandoned: the process died or lost the database.
	ReplayAbandoned = "abandoned"

	// ReplayFinished: nothing is left to do.
	ReplayFinished = "finished"
)

// What a replay replays: the quarantine of a consumer, dead letters of the forwarder,
// or messages of the sent log.
const (
	SourceQuarantine = "quarantine"
	SourceDead       = "dead"
	SourceSent       = "sent"
)

var (
	// ErrReplayRunning says that another replay of the consumer is running, or that
	// another process runs the replay that you resume.
	ErrReplayRunning = errors.New("a replay is running")

	// ErrReplayNotFound says that there is no replay of that ID.
	ErrReplayNotFound = errors.New("no such replay")

	// ErrReplayFinished says that the replay has no messages left to resume.
	ErrReplayFinished = errors.New("the replay has finished")

	// ErrReplayLost says that the replay did not renew its lease in time, and
	// that another replay has begun or has resumed it.
	ErrReplayLost = errors.New("the lease of the replay ran out")

	// ErrReplayStopped says that messages failed again, or that somebody called
	// poison.Quarantine.StopReplay. The messages that were not replayed yet stay
	// where they are.
	ErrReplayStopped = errors.New("the replay was stopped")
)
