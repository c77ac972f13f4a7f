package retry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/fields"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// unrunnable returns why no handler may run a claimed message, or nil if a handler may
// run the message.
func (f *fetcher) unrunnable(c parked.Claimed) *disposition.Error {
	why := &disposition.Error{Kind: disposition.Permanent, NotCalled: true, Attempts: c.Attempts}
	switch {
	case c.Err != nil:
		why.Reason, why.Err = disposition.ReasonUndecodable, c.Err
	case c.Crashes > f.config.CrashBudget:
		why.Reason = disposition.ReasonCrashed
		why.Err = fmt.Errorf("retry: the process ended %d times while the handler ran", c.Crashes-1)
	default:
		return nil
	}
	return why
}

// prepare returns the message of a claim for the handler, with its context. If the
// message is unrunnable, the context contains the reason, and the middlewares
// quarantine the message. If prepare has settled the row, it returns false, because
// there is no message to deliver.
func (f *fetcher) prepare(ctx context.Context, c parked.Claimed) (msg *message.Message, ok bool) {
	d := f.delivery(c.Claim)
	ctx = parked.WithDelivery(ctx, d)
	why := f.unrunnable(c)
	if why == nil {
		c.Message.SetContext(ctx)
		return c.Message, true
	}
	if why.Reason == disposition.ReasonCrashed && f.settleApplied(ctx, d, c) || !f.awaitMiddleware(ctx, d, why) {
		return nil, false
	}
	c.Manage() // otherwise an ack without a quarantine would resolve the row
	msg = withoutContent(c.Message)
	msg.SetContext(disposition.WithUnrunnable(ctx, why))
	return msg, true
}

// withoutContent returns a message with the id and the trace of msg, but without its
// content. The content may have caused the crash, and middlewares outside of poison
// would read it. If the envelope of the message is damaged, msg is nil.
func withoutContent(msg *message.Message) *message.Message {
	if msg == nil {
		return message.NewMessage("", nil)
	}
	empty := message.NewMessage(msg.UUID, nil)
	traced, _ := telemetry.Extract(context.Background(), msg.Metadata)
	telemetry.Inject(traced, empty.Metadata)
	return empty
}

// settleApplied is called for a message whose crash budget is used up. If the inbox
// contains the message, the process died after the commit, and settleApplied settles
// the row. If the inbox cannot be searched, settleApplied releases the row. In both
// cases it returns true.
func (f *fetcher) settleApplied(ctx context.Context, d *parked.Delivery, c parked.Claimed) (settled bool) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	applied, err := f.store.Applied(ctx, c)
	if err == nil && applied {
		err = f.store.Resolve(ctx, c.Claim)
	}
	named := fields.Message(c.Message.UUID, c.Message.Metadata, watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "entry": c.ID})
	switch {
	case err != nil:
		f.config.Logger.Error("Inbox cannot be asked about a crashed message, retrying", err, named)
		if !errors.Is(err, parked.ErrClaimLost) {
			f.release(ctx, d, lookAgain)
		}
	case applied:
		f.config.Logger.Info("Parked message was already handled before its process died", named)
	}
	return err != nil || applied
}

// middlewareWait is how long an unrunnable message waits for the router to call the
// middleware. The message can arrive earlier, because the router calls Subscribe first.
// If the router has not called the middleware by then, the handler probably has none,
// see awaitMiddleware.
const middlewareWait = time.Second

// awaitMiddleware returns true as soon as the middleware is used. Without the
// middleware, an unrunnable message would reach the handler. If the middleware is not
// used within middlewareWait, or if the consumer shuts down, awaitMiddleware therefore
// releases the row and returns false.
func (f *fetcher) awaitMiddleware(ctx context.Context, d *parked.Delivery, why error) (used bool) {
	wait := time.NewTimer(middlewareWait)
	defer wait.Stop()
	select {
	case <-f.used:
		return true
	case <-d.Closing:
		f.release(ctx, d, 0)
	case <-wait.C:
		logNoQuarantine(f.config.Logger, d, "", why)
		f.release(ctx, d, f.longestPause())
	}
	return false
}

// longestPause returns the pause before the next try of a message that was given up on
// but could not be quarantined. It is the longest delay of the policy, with jitter.
func (f *fetcher) longestPause() time.Duration {
	return f.config.Policy.backoff().Jittered(max(1, f.config.Policy.Delayed))
}

// logNoQuarantine logs that the middleware of poison does not enclose the middleware of
// retry.
func logNoQuarantine(logger watermill.LoggerAdapter, d *parked.Delivery, uuid string, why error) {
	logger.Error("Parked message cannot be quarantined: the chain needs poison's middleware, and retry's inside of it; the row is kept", why,
		watermill.LogFields{"consumer": d.Consumer, "topic": d.Topic, "entry": d.Claim.ID, "message_uuid": uuid})
}
