package operate

import (
	"errors"
	"fmt"
	"time"
)

// Act says who changes something, and why. Each change writes both to the audit log.
type Act struct {
	// Actor is the name of the person. It is required.
	Actor string

	// Why is the reason. Required if a message may be lost, such as to discard or to edit it.
	Why string
}

// Errors of packages outbox, dead, parked and quarantine. The text of an error says more.
var (
	// ErrNotFound means that no message has the ID. It may have been sent or handled.
	ErrNotFound = errors.New("not found")

	// ErrNeedsForce means that only a call with Plan.Force can change the message.
	ErrNeedsForce = errors.New("needs force")

	// ErrClaimed means that a handler is handling the message or a copy of it, or that another
	// transaction is changing it.
	ErrClaimed = errors.New("a handler is handling the message or a copy of it: try again when that has ended")
)

// Validate returns an error if Actor is empty.
func (a Act) Validate() error {
	if a.Actor == "" {
		return errors.New("Actor is empty: name who does this")
	}
	return nil
}

// ValidateLoss also returns an error if Why is empty, for acts that lose messages.
func (a Act) ValidateLoss() error {
	err := a.Validate()
	if a.Why == "" {
		err = errors.Join(err, errors.New("Why is empty: say why the messages may be lost"))
	}
	return err
}

// GroupPage is a page of failure groups.
type GroupPage struct {
	Groups []Group

	// Partial is true if only the latest messages were read. Groups with only older ones are then
	// missing, even from an empty page, and counts may be too low, so Group.More is true in each.
	// DryRun counts all messages.
	Partial bool
}

// Group describes messages that failed for the same cause: with the same reason and error text,
// without the ids, numbers, times, addresses and quoted values in it, but with its codes and names
// of exchanges, topics, tables, columns, constraints and fields. Package quarantine also compares
// the consumer and the error type.
type Group struct {
	// Fingerprint identifies the group, also in a Filter for its messages.
	Fingerprint string

	// Count is the number of messages. More says that there may be more, because Groups of both
	// packages stops counting at a limit. DryRun counts all.
	Count int
	More  bool

	// Consumers are the consumers that failed, none for dead letters, Topics those of the messages.
	Consumers, Topics []string

	// Reason and ErrorType are those of all messages; dead letters have no ErrorType. Error is the
	// text of the latest message.
	Reason, ErrorType, Error string

	// FirstFailedAt and LastFailedAt are the times of the first and the last failure, for a dead
	// letter the time at which the forwarder gave up on it.
	FirstFailedAt, LastFailedAt time.Time

	// Skipped contains the IDs of the dead letters that a replay skips because they need
	// Plan.Force, in ascending order. Only DryRun of package dead sets this field.
	Skipped []int64
}

// Plan configures a call that changes many messages: how fast it runs, and what makes it stop. With
// the zero value, it works as fast as the database or the consumer accepts the messages.
//
// Canary, Window and StopOnFailure depend on the outcome of each message, which only the consumer's
// database knows, so only a replay of package quarantine supports them. The other calls return an
// error if one of them is set.
type Plan struct {
	// Canary is the number of messages to replay first. The others follow when all of these have
	// been handled. If one fails, the replay stops. Defaults to 0: no canary.
	Canary int `json:"canary,omitempty"`

	// Rate is the maximum number of messages to change per second. Defaults to no limit.
	Rate int `json:"rate,omitempty"`

	// Window is the maximum number of replayed messages that wait for their handler. Defaults to
	// 1,000, and with StopOnFailure to 100.
	Window int `json:"window,omitempty"`

	// StopOnFailure stops the replay when one of its messages is quarantined again.
	// Messages that were already replayed are still handled.
	StopOnFailure bool `json:"stop_on_failure,omitempty"`

	// Force also changes messages that are otherwise left out.
	//
	// Package outbox cancels messages that a forwarder may be sending, and may still send.
	//
	// Package dead replays messages that a consumer could handle a second time, see
	// Config.InboxRetention, and those that the outbox would refuse, see dead.ReasonMalformed and
	// dead.ReasonInvalid.
	//
	// In package quarantine, Force removes the ids of replayed messages from the inbox, so that
	// handled ones are handled again, and also replays resolved entries in Filter.IDs. Even then,
	// dedup skips messages whose business key (dedup.Config.Key) was handled, and sequence those
	// whose version is lower than the last applied one.
	Force bool `json:"force,omitempty"`

	// Progress is called after each batch, and the next one waits for it. A replay of package
	// quarantine also calls it after other changes, at the end, and about once a second. Defaults
	// to nil.
	Progress func(Report) `json:"-"`
}

// Validate returns an error that names every negative field, or nil.
func (p Plan) Validate() error {
	var errs []error
	for _, field := range []struct {
		name  string
		value int
	}{{"Canary", p.Canary}, {"Rate", p.Rate}, {"Window", p.Window}} {
		if field.value < 0 {
			errs = append(errs, fmt.Errorf("Plan.%s is %d: negative", field.name, field.value))
		}
	}
	return errors.Join(errs...)
}

// Report is the result of a call that changes many messages, or its state while it runs.
// The lists are in ascending order.
type Report struct {
	// ID identifies a replay, for Resume. If no message matched, the replay is not stored, and ID
	// is 0. State is one of the Replay constants. Total is the number of messages that matched at
	// the start, at most Filter.Limit. Only replays set these fields.
	ID    int64
	State string
	Total int

	// Changed is the number of changed messages: those that were given back to the outbox
	// or to their consumer, made due, cancelled or discarded.
	Changed int

	// Skipped contains the IDs of messages that need Plan.Force, that a consumer is handling,
	// or that another transaction was changing.
	Skipped []int64

	// Handled contains the IDs of messages that were not changed because the inbox contains their
	// ids: the consumer has handled them or copies of them, and removes the rows at its next claim.
	// Only package parked sets it.
	Handled []int64

	// Abandoned contains the IDs of changed messages whose claim had ended without a result,
	// because its process died or is frozen. A frozen process that continues does not handle them,
	// because dedup notices the end of its lease, except for consumers without dedup, messages
	// without an id, and consumers in dedup.Config.Idempotent. Only package parked sets it.
	Abandoned []int64

	// Resolved counts the replayed entries that were handled, Failed those that failed again,
	// Waiting those that still wait, and Stale those that were quarantined again without a call of
	// their handler, because a higher version was applied in the meantime. Only package quarantine
	// sets these fields.
	Resolved, Failed, Stale, Waiting int
}

// Replay is a replay of many messages, as the table of replays stores it.
type Replay struct {
	// Report contains the counts, the ID for Resume and the State.
	Report

	// StopReason says why the replay was paused or stopped.
	StopReason string

	// Source is one of the Source constants. Only a replay of the quarantine counts more than
	// Total, Changed and Skipped.
	Source string

	// Consumer is the consumer in the Filter. If it is "", the replay is for all consumers.
	Consumer string

	// Filter and Plan are the arguments of the call, without Plan.Progress.
	Filter Filter
	Plan   Plan

	// Actor and Why come from the Act that began the replay.
	Actor, Why string

	// StartedAt is the time of the start. EndedAt is zero while the replay runs.
	StartedAt, EndedAt time.Time
}

// States of a replay of many messages, in [Report].State.
const (
	// ReplayRunning: a process runs the replay.
	ReplayRunning = "running"

	// ReplayPaused: the context ended, or an error occurred. The audit log has the reason.
	ReplayPaused = "paused"

	// ReplayStopped: messages failed again, or an operator stopped the replay.
	ReplayStopped = "stopped"

	// ReplayAbandoned: the process that ran the replay died, or lost the database.
	ReplayAbandoned = "abandoned"

	// ReplayFinished: no message is left to replay.
	ReplayFinished = "finished"
)

// Sources of a replay: a consumer's quarantine, the forwarder's dead letters, or the sent log.
const (
	SourceQuarantine = "quarantine"
	SourceDead       = "dead"
	SourceSent       = "sent"
)

var (
	// ErrReplayRunning means that another replay of the consumer is running, or another process runs
	// this one.
	ErrReplayRunning = errors.New("a replay is running")

	// ErrReplayNotFound means that no replay with this ID exists.
	ErrReplayNotFound = errors.New("no such replay")

	// ErrReplayFinished means that the replay has no messages left to resume.
	ErrReplayFinished = errors.New("the replay has finished")

	// ErrReplayLost means that the replay did not renew its lease in time: another replay has
	// begun, or another process has resumed this one.
	ErrReplayLost = errors.New("the lease of the replay ran out")

	// ErrReplayStopped means that messages failed again, or that quarantine.Entries.StopReplay was
	// called. Messages that were not replayed yet stay where they are.
	ErrReplayStopped = errors.New("the replay was stopped")
)
