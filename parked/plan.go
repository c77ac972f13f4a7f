package parked

import (
	"fmt"

	"github.com/watermill-once/once/operate"
)

// Act contains the name of the person who changes something, and the reason. Actor is
// always required. Why is required to cancel and to discard messages.
type Act = operate.Act

// Action is a kind of change of messages.
type Action string

// Actions for [Messages.DryRun].
const (
	// RunNow makes waiting messages due immediately.
	RunNow Action = "run"

	// Cancel moves waiting and held messages into quarantine.
	Cancel Action = "cancel"

	// Discard ends waiting and held messages for good.
	Discard Action = "discard"
)

// Plan configures a call that changes many messages. With the zero value, the call
// works as fast as the database allows.
type Plan struct {
	// Rate is the maximum number of messages to change per second. Defaults to no limit.
	Rate int

	// Progress is called after each batch. The next batch waits until Progress returns.
	// Defaults to nil.
	Progress func(Report)
}

// Report contains the results of a call. Each message is in only one of Changed,
// Skipped and Handled. The lists are in ascending order.
type Report struct {
	// Changed is the number of changed messages.
	Changed int

	// Skipped contains the IDs of messages that were not changed because a consumer is
	// handling them, or because another transaction was changing them.
	Skipped []int64

	// Handled contains the IDs of messages that were not changed because the inbox contains
	// their ids: the consumer has handled these messages or copies of them. The consumer
	// removes the rows when it claims them the next time.
	Handled []int64

	// Abandoned contains the IDs of changed messages whose claim had ended without a
	// result, because the process with the claim died or is frozen. If a frozen process
	// continues later, it does not handle these messages, because dedup notices that its
	// lease has ended. There are three exceptions, in which the handler may still be
	// running: consumers without dedup, messages without an id, and consumers listed in
	// dedup.Config.Idempotent.
	Abandoned []int64
}

// add adds the numbers and IDs of a batch to r.
func (r *Report) add(batch Report) {
	r.Changed += batch.Changed
	r.Skipped = append(r.Skipped, batch.Skipped...)
	r.Handled = append(r.Handled, batch.Handled...)
	r.Abandoned = append(r.Abandoned, batch.Abandoned...)
}

func (p Plan) validate() error {
	if p.Rate < 0 {
		return fmt.Errorf("Plan.Rate is %d: negative", p.Rate)
	}
	return nil
}
