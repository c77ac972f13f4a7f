package operate

import "errors"

// States of a replay of many messages, in [Report].State.
const (
	// ReplayRunning: a process runs the replay.
	ReplayRunning = "running"

	// ReplayPaused: the context of the replay ended, or an error occurred.
	ReplayPaused = "paused"

	// ReplayStopped: messages failed again, or an operator stopped the replay.
	ReplayStopped = "stopped"

	// ReplayAbandoned: the process that ran the replay died, or lost the database.
	ReplayAbandoned = "abandoned"

	// ReplayFinished: no message is left to replay.
	ReplayFinished = "finished"
)

// Sources of a replay: the quarantine of a consumer, dead letters of the forwarder, or
// messages of the sent log.
const (
	SourceQuarantine = "quarantine"
	SourceDead       = "dead"
	SourceSent       = "sent"
)

var (
	// ErrReplayRunning means that another replay of the consumer is running. If you resume a
	// replay, it can also mean that another process is running the replay that you want to
	// resume.
	ErrReplayRunning = errors.New("a replay is running")

	// ErrReplayNotFound means that no replay with this ID exists.
	ErrReplayNotFound = errors.New("no such replay")

	// ErrReplayFinished means that the replay has no messages left to resume.
	ErrReplayFinished = errors.New("the replay has finished")

	// ErrReplayLost means that the replay did not renew its lease in time, and lost its
	// right to run: another replay has begun, or another process has resumed this replay.
	ErrReplayLost = errors.New("the lease of the replay ran out")

	// ErrReplayStopped means that messages failed again, or that
	// poison.Quarantine.StopReplay was called. The messages that were not replayed yet stay
	// where they are.
	ErrReplayStopped = errors.New("the replay was stopped")
)
