package sequence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/fields"
)

// errEarly is the error of a held message.
var errEarly = errors.New("sequence: an earlier version has not arrived yet")

// early decides what to do with a message if versions before it are missing. If the
// result err is nil, the message must be applied. If the result filled is also true,
// the missing versions then count as applied.
func (r *Resequencer) early(ctx context.Context, t delivered, l last) (outcome int, filled bool, err error) {
	if !t.delivery.Subscribed {
		return undecided, false, disposition.NotCalled(fmt.Errorf("sequence: %w", errNoSubscriber))
	}
	gap := r.gap(t, l)
	if claim := t.delivery.Claim; claim != nil {
		gap.Waited = claim.Waited
	}
	lowest := gap.Waited >= maxWindows*r.config.Window
	if gap.Waited >= r.config.Window && !lowest {
		// The windows of several versions often end at the same time. If a higher version
		// were applied first, the lowest version would be late.
		err := r.sql.lowest.Get(ctx, t.tx, &lowest, t.consumer, t.sequence(), gap.Last, t.version)
		if err != nil {
			return undecided, false, statementError("look for lower versions", err)
		}
	}
	if !lowest {
		r.logMissingFirst(t, gap)
		place := disposition.Turn{AggregateType: t.kind, AggregateID: t.id, Sequence: t.sequence(), Version: t.version}
		return held, false, disposition.NotYet(place, r.config.recheckAfter(gap.Waited), errEarly)
	}
	after := r.config.AfterWindow
	if r.config.OnGap != nil {
		if after, err = r.config.OnGap(ctx, t.tx, gap); err != nil {
			return failed, false, err
		}
		filled = after == Apply
	} else if t.replayed() { // the operator has decided to apply the message
		after = Apply
	}
	if after == Quarantine {
		return givenUp, false, disposition.Forever(disposition.ReasonGap, &GapError{gap})
	}
	return appliedWithGap, filled, nil
}

// late decides what to do with a message that arrives after a higher version was
// applied without it. If OnStale is set, OnStale handles the message. Otherwise a
// replayed message is applied, out of order, and any other message is given up on.
func (r *Resequencer) late(ctx context.Context, t delivered, l last, msg *message.Message) (outcome int, err error) {
	switch {
	case r.config.OnStale != nil:
		if err := r.config.OnStale(ctx, t.tx, r.gap(t, l), msg); err != nil {
			return failed, err
		}
		return merged, nil
	case t.replayed():
		return appliedWithGap, nil
	}
	return givenUp, disposition.Forever(disposition.ReasonGap, &GapError{r.gap(t, l)})
}

// stale decides what to do with a message whose version no longer has an effect. A
// replayed message goes back to quarantine, so that its replay does not count as
// resolved.
func (r *Resequencer) stale(t delivered, l last, msg *message.Message) error {
	if t.replayed() {
		return disposition.Forever(disposition.ReasonStale, fmt.Errorf("sequence: %w: version %d of %s %q is not above version %d, "+
			"which is applied, so the replay did not run the handler: discard the message", ErrStale, t.version, t.kind, t.id, l.version))
	}
	r.config.Logger.Debug("Message is not newer than the last applied version, ignored",
		fields.Message(msg.UUID, msg.Metadata, watermill.LogFields{"consumer": t.consumer}))
	return nil
}

func (r *Resequencer) gap(t delivered, l last) Gap {
	return Gap{
		Consumer: t.consumer, AggregateType: t.kind, AggregateID: t.id, Version: t.version,
		Last: r.config.before(l), First: r.config.first(),
	}
}

// logFirstAfter is how long a message waits for the first version of its aggregate
// before the wait is logged. Waits because of concurrency or a short failure end
// earlier, and are not logged.
const logFirstAfter = 10 * time.Second

// logMissingFirst logs, once for each consumer, that a message waits for the first
// version of its aggregate. An operator can then notice a wrong Config.First before the
// first message goes to quarantine.
func (r *Resequencer) logMissingFirst(t delivered, gap Gap) {
	if gap.Last >= gap.First || gap.Waited < min(logFirstAfter, r.config.Window/2) {
		return
	}
	if _, logged := r.missingFirst.LoadOrStore(t.consumer, true); logged {
		return
	}
	r.config.Logger.Error("Messages wait for the first version of their aggregate",
		fmt.Errorf("sequence: version %d of %s %q is held, because no version of it has been applied; "+
			"versions must begin at %d (Config.First): for aggregates that are older than this consumer, "+
			"insert their last versions into %s, see docs/choosing.md",
			gap.Version, gap.AggregateType, gap.AggregateID, gap.First, r.config.Schema.Table("versions")),
		watermill.LogFields{"consumer": t.consumer, "topic": t.delivery.Topic, "held_for_at_most": r.config.Window.String()})
}
