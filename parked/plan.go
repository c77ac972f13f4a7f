package parked

import (
	"fmt"

	"github.com/watermill-once/once/operate"
)

// Act names the person who changes something, and the reason: Actor is always
// required, Why to cancel and to discard messages.
type Act = operate.Act

// Action is what a call does with messages.
type Action string

// The actions.
const (
	// RunNow makes waiting messages due now.
	RunNow Action = "run"

	// Cancel moves waiting and held messages into quarantine.
	Cancel Action = "cancel"

	// Discard ends waiting and held messages for good.
	Discard Action = "discard"
)

// Plan is how to change many messages. The zero value does it as fast as the database
// can.
type Plan struct {
	// Rate is the largest number of messages to change a second. Defaults to no limit.
	Rate int

	// Progress is called after each batch. The next batch waits until Progress returns.
	// Defaults to nothing.
	Progress func(Report)
}

// Report counts the messages of a call. A message is in one of Changed, Skipped and
// Handled. The lists are in ascending order.
type Report struct {
	// Changed is how many messages were changed.
	Changed int

	// Skipped are the IDs of messages that a consumer is handling, or that somebody else
	// was changing. They were not changed.
	Skipped []int64

	// Handled are the IDs of messages that were not changed because the inbox has their
	// ids: the consumer has handled them, or copies of them. Their rows go when the
	// consumer claims them next.
	Handled []int64

	// Abandoned are the IDs of changed messages whose claim had ended without a result:
	// their process died or is frozen. A frozen process does not complete them, because
	// the inbox has their ids. There are exceptions, for which its handler may still be
	// running: without dedup, messages without an id, and dedup.Config.Idempotent.
	Abandoned []int64
}

// add adds the report of a batch.
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
