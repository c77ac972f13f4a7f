package rows

import (
	"context"
	"time"

	"github.com/watermill-once/once/operate"
)

// LongestWait is the longest [Rate.Wait]: at the lowest rate, one message per second.
const LongestWait = time.Second

// Rate limits the number of messages that a call replays, cancels or changes per second.
type Rate struct {
	perSecond int
	tokens    float64   // number of messages that may be changed at the time filledAt
	filledAt  time.Time // time at which tokens was last updated
}

// NewRate returns a Rate. perSecond is the number of messages that it
// allows per second; 0 means no limit. One message may be changed immediately.
func NewRate(perSecond int) *Rate {
	return &Rate{perSecond: perSecond, tokens: 1, filledAt: time.Now()}
}

// Room returns how many messages may be changed now, at most limit.
func (r *Rate) Room(limit int) int {
	if r.perSecond == 0 {
		return limit
	}
	rate, now := float64(r.perSecond), time.Now()
	// Allow at most the messages of one second, because unused time is not saved.
	r.tokens = min(r.tokens+rate*now.Sub(r.filledAt).Seconds(), rate)
	r.filledAt = now
	return int(min(float64(limit), r.tokens)) // the rate may not fit into an int
}

// Took records that n messages were changed.
func (r *Rate) Took(n int) { r.tokens -= float64(n) }

// Wait waits until the rate allows a batch, which has at most limit messages, and those of a
// quarter of a second, so that the changes are spread evenly. If ctx ends first, Wait returns its
// error.
func (r *Rate) Wait(ctx context.Context, limit int) error {
	batch := max(1, min(limit, r.perSecond/4))
	for r.Room(batch) < batch && r.perSecond > 0 {
		missing := float64(batch) - r.tokens
		wait := time.NewTimer(time.Duration(missing/float64(r.perSecond)*float64(time.Second)) + 1)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// EachBatch changes the rows that match f up to the ID last, in batches of at most size rows, and
// adds each batch to report, even a failed one. change changes the next rows after f.AfterID, and
// returns the ID of the last one that it examined.
func EachBatch(
	ctx context.Context, f operate.Filter, plan operate.Plan, size int, last int64, report *operate.Report,
	change func(f operate.Filter, size int) (after int64, batch operate.Report, err error),
) error {
	rate := NewRate(plan.Rate)
	for f.AfterID < last && (f.Limit == 0 || report.Changed < f.Limit) {
		if err := rate.Wait(ctx, size); err != nil {
			return err
		}
		n := rate.Room(size)
		if f.Limit > 0 {
			n = min(n, f.Limit-report.Changed)
		}
		after, batch, err := change(f, n)
		AddReport(report, batch)
		if err != nil {
			return err
		}
		f.AfterID = after
		rate.Took(batch.Changed)
		if found := batch.Changed + len(batch.Skipped) + len(batch.Handled); found > 0 && plan.Progress != nil {
			plan.Progress(*report)
		}
	}
	return nil
}

// AddReport adds the counts and the lists of a batch to report.
func AddReport(report *operate.Report, batch operate.Report) {
	report.Changed += batch.Changed
	report.Skipped = append(report.Skipped, batch.Skipped...)
	report.Handled = append(report.Handled, batch.Handled...)
	report.Abandoned = append(report.Abandoned, batch.Abandoned...)
}
