package operate

import (
	"errors"
	"fmt"
)

// Plan configures a replay of many messages: how fast it runs, and what makes it stop.
// With the zero value, package deadletter replays as fast as the database accepts the
// messages, and package poison as fast as the consumer handles them.
//
// Canary, Window and StopOnFailure depend on the outcome of each replayed message. Only
// the consumer's database knows the outcome. Package deadletter works in the producer's
// database, so it returns an error if one of these fields is set.
type Plan struct {
	// Canary is the number of messages to replay first. The other messages follow when all
	// of these messages have been handled. If one of them fails, the replay stops. Defaults
	// to 0: all messages are replayed without a canary.
	Canary int `json:"canary,omitempty"`

	// Rate is the maximum number of messages to replay per second. Defaults to no limit.
	Rate int `json:"rate,omitempty"`

	// Window is the maximum number of replayed messages that wait for their handler at the
	// same time. Defaults to 1,000, and with StopOnFailure to 100.
	Window int `json:"window,omitempty"`

	// StopOnFailure stops the replay when one of its messages is quarantined again.
	// Messages that were already replayed are still handled.
	StopOnFailure bool `json:"stop_on_failure,omitempty"`

	// Force also replays messages that are otherwise left out.
	//
	// Package deadletter leaves out messages that a consumer could handle a second time,
	// see deadletter.Config.InboxRetention, and messages that the outbox would refuse, see
	// deadletter.ReasonMalformed and deadletter.ReasonInvalid.
	//
	// In package poison, dedup skips replayed messages that the consumer has handled. Force
	// removes their ids from the inbox, so that they are handled again, and also replays
	// resolved entries in poison.Filter.IDs. Even with Force, dedup skips messages whose
	// business key (dedup.Config.Key) was handled, and sequence skips messages whose
	// version is lower than the last applied version.
	Force bool `json:"force,omitempty"`

	// Progress is called with the state of the replay after each batch, after other
	// changes, and at the end. If nothing changes, package poison calls it about once a
	// second, or less often while the replay pauses. The replay waits until Progress
	// returns. Defaults to nil.
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

// Report is the state of a replay of many messages.
type Report struct {
	// ID identifies the replay: pass it to Resume to continue the replay. State is one of
	// the Replay constants. If no message matched, the replay is not stored, and ID is 0.
	ID    int64
	State string

	// Total is the number of messages that matched at the start, at most Filter.Limit.
	// Replayed is the number of these messages that were already given back to the outbox or
	// to their consumer.
	Total, Replayed int

	// Skipped contains the IDs of dead letters, or of rows of the sent log, that are
	// replayed only with Plan.Force, in ascending order. Only package deadletter sets this
	// field.
	Skipped []int64

	// Resolved is the number of replayed entries that were handled. Failed is the number of
	// entries that were quarantined again after a failure. Waiting is the number of entries
	// that still wait. Stale is the number of entries that were quarantined again because a
	// higher version was applied in the meantime: their handler did not run, so they are
	// not failures. Only package poison sets these fields.
	Resolved, Failed, Stale, Waiting int
}
