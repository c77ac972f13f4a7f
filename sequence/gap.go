package sequence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/meta"
)

var errEarly = errors.New("sequence: an earlier version has not arrived yet")

// early decides about a message with missing versions before it. Without an error, it must be
// applied, and if filled is true, the missing versions count as applied.
func (r *Resequencer) early(ctx context.Context, t delivered, l last) (outcome int, filled bool, err error) {
	if !t.delivery.Subscribed {
		return undecided, false, chain.NotCalled(fmt.Errorf("sequence: %w", errNoSubscriber))
	}
	gap := r.gap(t, l)
	if claim := t.delivery.Claim; claim != nil {
		gap.Waited = claim.Waited
	}
	lowest := gap.Waited >= maxWindows*r.config.Window
	if gap.Waited >= r.config.Window && !lowest {
		// The windows of several versions often end together. If a higher one were applied first,
		// the lowest would be late.
		err := r.queries.In(t.tx).lowest.Get(ctx, t.tx, &lowest, t.consumer, t.sequence(), gap.Last, t.version)
		if err != nil {
			return undecided, false, statementError("look for lower versions", err)
		}
	}
	if !lowest {
		r.logMissingFirst(t, gap)
		place := chain.Turn{AggregateType: t.kind, AggregateID: t.id, Sequence: t.sequence(), Version: t.version}
		return held, false, chain.NotYet(place, r.config.recheckAfter(gap.Waited), errEarly)
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
		return givenUp, false, chain.Forever(chain.ReasonGap, &gapError{gap})
	}
	return appliedWithGap, filled, nil
}

// late decides about a message that arrives after a higher version was applied without it: OnStale
// handles it if it is set. Otherwise a replayed one is applied, out of order, and any other is
// given up on.
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
	return givenUp, chain.Forever(chain.ReasonGap, &gapError{r.gap(t, l)})
}

// A replayed message goes back to quarantine, so that its replay does not count as resolved.
func (r *Resequencer) stale(t delivered, l last, msg *message.Message) error {
	if t.replayed() {
		return chain.Forever(chain.ReasonStale, fmt.Errorf("sequence: %w: version %d of %s %q is not above version %d, "+
			"which is applied, so the replay did not run the handler: discard the message", errStale, t.version, t.kind, t.id, l.version))
	}
	r.config.Logger.Debug("Message is not newer than the last applied version, ignored",
		meta.LogFields(msg.UUID, msg.Metadata, watermill.LogFields{"consumer": t.consumer}))
	return nil
}

func (r *Resequencer) gap(t delivered, l last) Gap {
	return Gap{
		Consumer: t.consumer, AggregateType: t.kind, AggregateID: t.id, Version: t.version,
		Last: r.config.before(l), First: r.config.first(),
	}
}

// logFirstAfter is how long a message waits for the first version of its aggregate before this is
// logged. Waits because of concurrency or a short failure end earlier.
const logFirstAfter = 10 * time.Second

// logMissingFirst logs once for each consumer, so that an operator can notice a wrong
// Config.FromZero before the first message goes to quarantine.
func (r *Resequencer) logMissingFirst(t delivered, gap Gap) {
	if gap.Last >= gap.First || gap.Waited < min(logFirstAfter, r.config.Window/2) {
		return
	}
	if _, logged := r.missingFirst.LoadOrStore(t.consumer, true); logged {
		return
	}
	r.config.Logger.Error("Messages wait for the first version of their aggregate",
		fmt.Errorf("sequence: version %d of %s %q is held, because no version of it has been applied; "+
			"versions must begin at %d (Config.FromZero): for aggregates that are older than this consumer, "+
			"insert their last versions into %s, see docs/ordering.md",
			gap.Version, gap.AggregateType, gap.AggregateID, gap.First, r.config.Schema.Table("versions")),
		watermill.LogFields{"consumer": t.consumer, "topic": t.delivery.Topic, "held_for_at_most": r.config.Window.String()})
}

var (
	// ErrGap means that an earlier version is missing, or the message came too late: a higher version was
	// applied without it.
	ErrGap = errors.New("a gap in the versions")

	// ErrInvalidVersion means that the aggregate metadata of a message cannot be used. The version
	// must be a whole number, not lower than the first version (Config.FromZero), and type and id
	// valid UTF-8 of at most 255 bytes.
	ErrInvalidVersion = errors.New("unusable aggregate metadata")

	// errStale means that a replayed message goes back to quarantine, because its version is not
	// above the last applied one.
	errStale = errors.New("the version is stale")

	errNoTx         = errors.New("there is no transaction: put the middleware inside of dedup's")
	errNoConsumer   = errors.New("no consumer name: use the middleware in a router, or with retry's Subscriber")
	errNoSubscriber = errors.New("HoldForGap needs retry's Subscriber, which names the consumer and delivers held messages again")
)

// Gap describes which versions are missing before the version of a message.
type Gap struct {
	Consumer      string
	AggregateType string
	AggregateID   string
	Version       int64         // version of the message
	Last          int64         // last applied version, or First-1 if no version was applied; for a late message, at least Version
	First         int64         // lowest version of an aggregate, see Config.FromZero
	Waited        time.Duration // time since the message was first found to be early
}

// gapError sends a message to quarantine because of a gap. It unwraps to [ErrGap].
type gapError struct{ Gap }

func (e *gapError) Error() string {
	switch {
	case e.Last >= e.Version:
		return fmt.Sprintf("sequence: version %d of %s %q came after version %d had been applied without it: "+
			"replay it to apply it now, out of order, or discard it", e.Version, e.AggregateType, e.AggregateID, e.Last)
	case e.Last < e.First:
		return fmt.Sprintf("sequence: version %d of %s %q came, and no earlier version in %v: versions must begin at %d (Config.FromZero); "+
			"replay it to begin with it", e.Version, e.AggregateType, e.AggregateID, e.Waited.Round(time.Millisecond), e.First)
	}
	return fmt.Sprintf("sequence: version %d of %s %q came after version %d, and the versions between did not come in %v",
		e.Version, e.AggregateType, e.AggregateID, e.Last, e.Waited.Round(time.Millisecond))
}

// Unwrap returns [ErrGap].
func (e *gapError) Unwrap() error { return ErrGap }
