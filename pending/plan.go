package pending

import (
	"fmt"

	"github.com/watermill-once/once/operate"
)

// Act contains the name of the person who changes something, and the reason. Actor is
// always required. Why is required by Cancel and CancelMatching, because messages are
// lost.
type Act = operate.Act

// Plan configures a call that retries or cancels many messages. With the zero value,
// the call works as fast as the database allows.
type Plan struct {
	// Rate is the maximum number of messages to change per second. Defaults to no limit.
	Rate int

	// Force also cancels messages that a forwarder may be sending. The forwarder may
	// still send them after they are cancelled.
	Force bool

	// Progress is called after each batch. The next batch waits until Progress returns.
	// Defaults to nil.
	Progress func(Report)
}

// Report contains the results of a call.
type Report struct {
	// Changed is the number of messages that were retried or cancelled.
	Changed int

	// Skipped contains the IDs of messages that need Plan.Force, or that another
	// transaction was changing, in ascending order.
	Skipped []int64
}

func (p Plan) validate() error {
	if p.Rate < 0 {
		return fmt.Errorf("Plan.Rate is %d: negative", p.Rate)
	}
	return nil
}
