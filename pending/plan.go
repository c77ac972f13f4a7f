package pending

import (
	"fmt"

	"github.com/watermill-once/once/operate"
)

// Act names the person who changes something, and the reason: Actor is always
// required, Why by Cancel and CancelMatching, which lose messages.
type Act = operate.Act

// Plan is how to retry or cancel many messages. The zero value does it as fast as the
// database can.
type Plan struct {
	// Rate is the largest number of messages to change a second. Defaults to no
	// limit.
	Rate int

	// Force also cancels messages that a forwarder may be sending. It may still send
	// them after they are cancelled.
	Force bool

	// Progress is called after each batch. The next batch waits until Progress
	// returns. Defaults to nothing.
	Progress func(Report)
}

// Report counts the messages of a call.
type Report struct {
	// Changed is how many messages were retried or cancelled.
	Changed int

	// Skipped are the IDs of the messages that need Plan.Force, or that somebody else
	// was changing, in ascending order.
	Skipped []int64
}

func (p Plan) validate() error {
	if p.Rate < 0 {
		return fmt.Errorf("Plan.Rate is %d: negative", p.Rate)
	}
	return nil
}
