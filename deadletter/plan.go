package deadletter

import (
	"fmt"

	"github.com/watermill-once/once/internal/operate"
)

// Act names who changes something and why. Both are written to the audit table
// with each change.
type Act struct {
	// Actor is required.
	Actor string

	// Why is required by Discard and DiscardMatching, which lose messages.
	Why string
}

func (a Act) validate() error     { return operate.Act(a).Validate() }
func (a Act) validateLoss() error { return operate.Act(a).ValidateLoss() }

// Plan is how to replay many messages. The zero value replays as fast as the
// database accepts them.
type Plan struct {
	// Rate is the largest number of messages to replay a second. Defaults to no
	// limit.
	Rate int

	// Force also replays messages that are skipped without it: those that a
	// consumer could handle a second time, see Config.InboxRetention, and those
	// that the outbox would have refused, [ReasonMalformed] and [ReasonInvalid].
	Force bool

	// Progress is called after each batch. The next batch waits until Progress
	// returns. Defaults to nothing.
	Progress func(Report)
}

// Report counts the messages of a replay.
type Report struct {
	// Total is how many rows matched when the replay began, at most Filter.Limit.
	Total int

	// Replayed is how many messages were put into the outbox.
	Replayed int

	// Skipped are the IDs of the rows that need Plan.Force, in ascending order.
	Skipped []int64
}

func (p Plan) validate() error {
	if p.Rate < 0 {
		return fmt.Errorf("Plan.Rate is %d: negative", p.Rate)
	}
	return nil
}
