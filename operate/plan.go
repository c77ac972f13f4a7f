package operate

import (
	"errors"
	"fmt"
)

// Plan says how to replay many messages. With the zero value, package deadletter
// replays as fast as the database accepts the messages, and package poison as fast
// as the consumer handles them.
//
// Canary, Window and StopOnFailure need to know what became of a replayed message.
// The consumer's database knows that, the producer's does not: package deadletter
// returns an error if one of them is set.
type Plan struct {
	// Canary is the number of messages to replay first. The others follow after
	// all of these have been handled; if one fails, the replay stops. Defaults
	// to none.
	Canary int `json:"canary,omitempty"`

	// Rate is the largest number of messages to replay a second. Defaults to no
	// limit.
	Rate int `json:"rate,omitempty"`

	// Window is the maximum number of replayed messages that wait for their
	// handler at a time. Defaults to 1,000, and with StopOnFailure to 100.
	Window int `json:"window,omitempty"`

	// StopOnFailure stops the replay when one of its messages is quarantined
	// again. Messages that were replayed before are still handled.
	StopOnFailure bool `json:"stop_on_failure,omitempty"`

	// Force also replays messages that are left out without it.
	//
	// Package deadletter leaves out messages that a consumer could handle a second
	// time, see deadletter.Config.InboxRetention, and messages that the outbox
	// would refuse, see deadletter.ReasonMalformed and deadletter.ReasonInvalid.
	//
	// Package poison lets dedup skip messages that the consumer has handled. Force
	// removes their ids from the inbox, and also replays resolved entries of
	// poison.Filter.IDs. Even then, dedup skips messages that it knows by
	// dedup.Config.Key, and sequence skips messages that are older than the
	// version that it has applied.
	Force bool `json:"force,omitempty"`

	// Progress is called with the state of the replay: after each batch or other
	// change, and at the end; by package poison also once a second without a
	// change. The replay waits until Progress returns. Defaults to nothing.
	Progress func(Report) `json:"-"`
}

// Validate returns an error that names each field that is negative.
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

// Report is the state of a replay of many messages.
type Report struct {
	// ID is the argument of Resume, and State is one of the Replay constants. ID is 0
	// if no message matched, because such a replay is not stored.
	ID    int64
	State string

	// Total is the number of messages that matched at the start, at most
	// Filter.Limit. Replayed is the number of them that were given back: to the
	// outbox, or to their consumer.
	Total, Replayed int

	// Skipped are the IDs of the rows that need Plan.Force, in ascending order.
	// Only package deadletter sets it.
	Skipped []int64

	// Resolved counts the replayed entries that were handled, Failed those that
	// were quarantined again, and Waiting those that still wait. Stale counts those
	// that are in quarantine again because their version was overtaken: their
	// handler did not run, so they are no failures. Only package poison sets them.
	Resolved, Failed, Stale, Waiting int
}
