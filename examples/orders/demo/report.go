package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Report is the result of a run, counted in the tables and the queues.
type Report struct {
	Backend     string    `json:"backend"`     // "embedded" or "servers"
	Orders      int       `json:"orders"`      // orders that were placed, and whose clients got a 201
	Lost        int       `json:"lost"`        // orders that lack some of their effects
	Duplicated  int       `json:"duplicated"`  // effects beyond the expected number
	Quarantined int       `json:"quarantined"` // messages that failed until the handler was repaired
	Replayed    int       `json:"replayed"`    // quarantined messages that took effect after the repair
	Discarded   int       `json:"discarded"`   // malformed messages, which no consumer can apply
	Cancelled   int       `json:"cancelled"`   // orders that were refused, refunded and cancelled
	Phantom     int       `json:"phantom"`     // effects on orders that do not exist
	OK          bool      `json:"ok"`
	Seconds     float64   `json:"seconds"`
	Missing     []Missing `json:"missing"`    // orders that are lost
	Complaints  []string  `json:"complaints"` // all other errors

	// Between has a row for each consumer that receives events of the other service, if
	// there are two services.
	Between []Between `json:"between,omitempty"`

	// Injected is the number of injected faults, by kind.
	Injected map[string]int64 `json:"injected,omitempty"`
}

// Report audits the tables and the queues, and returns the result.
func (d *Demo) Report(ctx context.Context) (Report, error) {
	b, err := d.Audit.read(ctx)
	if err != nil {
		return Report{}, err
	}
	r := Report{
		Backend:     d.Wire.Backend(),
		Orders:      len(d.load.journal),
		Missing:     b.missing(d.load.journal),
		Quarantined: len(d.replayed),
		Discarded:   d.disposed,
		Cancelled:   len(b.effects["cancellations"]),
		Seconds:     time.Since(d.begun).Seconds(),
		Complaints:  []string{},
		Injected:    d.Faults.counts(),
	}
	r.Lost = len(r.Missing)
	r.Duplicated, r.Phantom = b.surplus()
	for _, e := range d.replayed {
		done, err := d.Audit.done(ctx, e.Consumer, e.MessageID)
		if err != nil {
			return Report{}, err
		}
		if done {
			r.Replayed++
		}
	}
	if r.Between, err = d.Audit.between(ctx); err != nil {
		return Report{}, err
	}
	if err := d.complain(ctx, b, &r); err != nil {
		return Report{}, err
	}
	r.OK = r.Lost == 0 && r.Duplicated == 0 && r.Phantom == 0 && r.Replayed == r.Quarantined && len(r.Complaints) == 0
	return r, nil
}

// complain adds the errors to r.Complaints that no other field of the report shows, for
// example messages that are still in a queue.
func (d *Demo) complain(ctx context.Context, b books, r *Report) error {
	waiting, dead, err := d.Audit.underWay(ctx)
	if err != nil {
		return err
	}
	queued, err := d.Wire.Waiting(ctx)
	if err != nil {
		return err
	}
	complain := func(wrong bool, format string, args ...any) {
		if wrong {
			r.Complaints = append(r.Complaints, fmt.Sprintf(format, args...))
		}
	}
	complain(d.cut != nil, "the run ended before all orders were handled: %v", d.cut)
	complain(r.Orders < d.Orders, "%d of %d orders were placed", r.Orders, d.Orders)
	complain(waiting > 0, "%d messages are in the outbox or wait for another attempt", waiting)
	complain(queued > 0, "%d messages are in the queues", queued)
	complain(dead > 0, "%d events are dead letters", dead)
	complain(d.left > 0, "%d messages are in quarantine", d.left)
	complain(r.Lost == 0 && b.ordered != b.booked, "%d items were ordered and %d are reserved", b.ordered, b.booked)
	complain(r.Lost == 0 && b.paid-b.refunded != b.earned,
		"the payments less refunds are %d and the revenue is %d", b.paid-b.refunded, b.earned)
	complain(r.Lost == 0 && b.paid != b.charged, "the payments are %d and the bank has charged %d", b.paid, b.charged)
	complain(r.Lost == 0 && b.refunded != b.returned, "the refunds are %d and the bank has returned %d", b.refunded, b.returned)
	complain(b.twice > 0, "%d mails were sent more than once", b.twice)
	complain(b.swapped > 0, "%d pairs of history entries are in the wrong order", b.swapped)
	for _, b := range r.Between {
		complain(b.Sent != b.Handled,
			"%s has sent %d events %s, and %s of %s has handled %d", b.From, b.Sent, b.Topic, b.Consumer, b.To, b.Handled)
	}
	for _, err := range d.load.errs {
		complain(!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded), "%v", err)
	}
	return nil
}

// counts returns the number of injected faults by kind. Without faults it returns nil.
func (f *Faults) counts() map[string]int64 {
	if f == nil {
		return nil
	}
	return map[string]int64{
		"duplicates":        f.injected.Duplicates.Load(),
		"failures":          f.injected.Failures.Load(),
		"panics":            f.injected.Panics.Load(),
		"poisonous":         f.injected.Poisonous.Load(),
		"malformed":         f.injected.Malformed.Load(),
		"forwarder_kills":   f.injected.ForwarderKills.Load(),
		"repeated_requests": f.injected.RepeatedRequests.Load(),
	}
}

// mostListed is the maximum number of lost orders that the report lists.
const mostListed = 50

// Write writes the report as text for people. The last line is the summary.
func (r Report) Write(w io.Writer) {
	var text strings.Builder
	if in := r.Injected; in != nil {
		fmt.Fprintf(&text, "injected: %d duplicates, %d failures and %d panics of handlers, %d poisonous orders, "+
			"%d malformed messages,\n          %d forwarders stopped in the middle of a batch, %d requests sent twice\n",
			in["duplicates"], in["failures"], in["panics"], in["poisonous"], in["malformed"],
			in["forwarder_kills"], in["repeated_requests"])
	}
	if r.Discarded > 0 {
		fmt.Fprintf(&text, "discarded=%d: malformed messages, which no consumer can apply\n", r.Discarded)
	}
	if r.Cancelled > 0 {
		fmt.Fprintf(&text, "cancelled=%d: orders with an item that is sold out; their payments were refunded\n", r.Cancelled)
	}
	for _, b := range r.Between {
		fmt.Fprintf(&text, "%s: %s sent %d, %s handled %d\n", b.Topic, b.From, b.Sent, b.Consumer, b.Handled)
	}
	for i, m := range r.Missing {
		if i == mostListed {
			fmt.Fprintf(&text, "lost: and %d more\n", len(r.Missing)-i)
			break
		}
		fmt.Fprintf(&text, "lost: order %s has no entry in %s\n", m.Order, strings.Join(m.Consumers, ", "))
	}
	if r.Phantom > 0 {
		fmt.Fprintf(&text, "phantom=%d: effects on orders that do not exist\n", r.Phantom)
	}
	for _, complaint := range r.Complaints {
		fmt.Fprintf(&text, "wrong: %s\n", complaint)
	}
	fmt.Fprintf(&text, "took %.1f s\n", r.Seconds)
	fmt.Fprintf(&text, "orders=%d lost=%d duplicated=%d quarantined=%d replayed=%d\n",
		r.Orders, r.Lost, r.Duplicated, r.Quarantined, r.Replayed)
	_, _ = io.WriteString(w, text.String())
}
