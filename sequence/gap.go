package sequence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/disposition"
)

// errEarly says that a message is held.
var errEarly = errors.New("sequence: a version before it has not come yet")

// early decides on a message for which versions are missing. Without an error it
// is to be applied all the same; filled says that those count as applied.
func (r *Resequencer) early(ctx context.Context, t turn, l last) (outcome int, filled bool, err error) {
	if !t.delivery.Subscribed {
		return undecided, false, disposition.NotCalled(fmt.Errorf("sequence: %w", ErrNoSubscriber))
	}
	gap := r.gap(t, l)
	if claim := t.delivery.Claim; claim != nil {
		gap.Waited = claim.Waited
	}
	lowest := gap.Waited >= mostWindows*r.config.Window
	if gap.Waited >= r.config.Window && !lowest {
		// Windows end together. The lowest goes first, or it would be stale.
		err := r.sql.lowest.Get(ctx, t.tx, &lowest, t.consumer, t.sequence(), gap.Last, t.version)
		if err != nil {
			return undecided, false, disposition.NotCalled(fmt.Errorf("sequence: look for lower versions: %w", err))
		}
	}
	if !lowest {
		r.tell(t, gap)
		place := disposition.Turn{AggregateType: t.kind, AggregateID: t.id, Sequence: t.sequence(), Version: t.version}
		return held, false, disposition.NotYet(place, r.config.lookAgain(gap.Waited), errEarly)
	}
	after := r.config.AfterWindow
	if r.config.OnGap != nil {
		if after, err = r.config.OnGap(ctx, t.tx, gap); err != nil {
			return failed, false, err
		}
		filled = after == Apply
	} else if t.replayed() { // which is an answer
		after = Apply
	}
	if after == Quarantine {
		return givenUp, false, disposition.Forever(disposition.ReasonGap, &GapError{gap})
	}
	return appliedWithGap, filled, nil
}

// late decides on a message that comes after a higher version was applied
// without it. Whoever replays it has it applied now, out of order.
func (r *Resequencer) late(t turn, l last) (outcome int, err error) {
	if t.replayed() {
		return appliedWithGap, nil
	}
	return givenUp, disposition.Forever(disposition.ReasonGap, &GapError{r.gap(t, l)})
}

func (r *Resequencer) gap(t turn, l last) Gap {
	return Gap{
		Consumer: t.consumer, AggregateType: t.kind, AggregateID: t.id, Version: t.version,
		Last: r.config.before(l), First: r.config.first(),
	}
}

// tellAfter is for how long a message may wait for the first version of its
// aggregate before that is logged: what runs side by side, and a short failure,
// take less.
const tellAfter = 10 * time.Second

// tell logs, once for each consumer, that a message waits for the first version
// of its aggregate. If versions do not begin where Config.First says, this is
// seen at once, and not when the first message is in quarantine.
func (r *Resequencer) tell(t turn, gap Gap) {
	if gap.Last >= gap.First || gap.Waited < min(tellAfter, r.config.Window/2) {
		return
	}
	if _, told := r.told.LoadOrStore(t.consumer, true); told {
		return
	}
	r.config.Logger.Error("Messages wait for the first version of their aggregate",
		fmt.Errorf("sequence: version %d of %s %q is held, since none of its versions has been applied; "+
			"versions must begin at %d (Config.First): for aggregates that began before this consumer did, "+
			"insert their last versions into %s, see docs/choosing.md",
			gap.Version, gap.AggregateType, gap.AggregateID, gap.First, r.config.Schema.Table("versions")),
		watermill.LogFields{"consumer": t.consumer, "topic": t.delivery.Topic, "held_for_at_most": r.config.Window.String()})
}
