package retry

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/telemetry"
)

// giveUpCrashed quarantines a message with a used up crash budget. If the inbox
// has the message, its process died after the commit: the row is resolved
// instead.
func (f *fetcher) giveUpCrashed(ctx context.Context, c parked.Claimed) {
	applied, err := f.store.Applied(ctx, c)
	if err == nil && applied {
		err = f.store.Resolve(ctx, c.Claim)
	}
	fields := watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "entry": c.ID, "message_uuid": c.Message.UUID}
	switch {
	case err != nil:
		err = errors.Join(err, f.store.Release(ctx, c.Claim, lookAgain))
		f.config.Logger.Error("Inbox cannot be asked about a crashed message, retrying", err, fields)
	case applied:
		f.config.Logger.Info("Parked message was already handled before its process died", fields)
	default:
		f.quarantine(ctx, f.delivery(c.Claim), c.Message, disposition.ReasonCrashed,
			fmt.Errorf("retry: the process ended %d times while the handler ran", c.Crashes-1))
	}
}

func (f *fetcher) quarantine(ctx context.Context, d *parked.Delivery, msg *message.Message, reason string, why error) {
	failure := parked.Failure{Err: why, Reason: reason, Attempts: d.Claim.Attempts}
	ctx, end := f.instruments.tracer.Quarantine(ctx, f.instruments.traced(), f.consumer, f.topic, reason, msg)
	failpoint.Hit("retry/quarantine-claim")
	err := f.store.QuarantineClaim(ctx, f.consumer, d.Claim, failure)
	end(telemetry.Stored, err)
	fields := watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "entry": d.Claim.ID, "reason": reason}
	if msg != nil { // nil if the stored envelope is damaged
		fields["message_uuid"] = msg.UUID
	}
	if err != nil {
		f.config.Logger.Error("Parked message cannot be quarantined", err, fields)
		return
	}
	f.instruments.quarantined(reason)
	f.config.Logger.Error("Parked message is quarantined without a call of its handler", why, fields)
}
