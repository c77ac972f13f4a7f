package sequence

import (
	"context"
	"errors"
	"fmt"

	"github.com/watermill-once/once/internal/verdict"
)

// errEarly says that a message is held.
var errEarly = errors.New("sequence: a version before it has not come yet")

// early decides on a message for which versions are missing. Without an error it
// is to be applied all the same.
func (r *Resequencer) early(ctx context.Context, t turn, l last) (outcome int, err error) {
	if !t.delivery.Subscribed {
		return undecided, verdict.NotCalled(fmt.Errorf("sequence: %w", ErrNoSubscriber))
	}
	gap := Gap{t.consumer, t.kind, t.id, t.version, r.config.before(l), 0}
	replayed := false
	if claim := t.delivery.Claim; claim != nil {
		gap.Waited, replayed = claim.Waited, claim.Replays > 0
	}
	lowest := gap.Waited >= mostWindows*r.config.Window
	if gap.Waited >= r.config.Window && !lowest {
		// Windows end together. The lowest goes first, or it would be stale.
		err := r.sql.lowest.Get(ctx, t.tx, &lowest, t.consumer, t.sequence(), gap.Last, t.version)
		if err != nil {
			return undecided, verdict.NotCalled(fmt.Errorf("sequence: look for lower versions: %w", err))
		}
	}
	if !lowest {
		place := verdict.Turn{AggregateType: t.kind, AggregateID: t.id, Sequence: t.sequence(), Version: t.version}
		return held, verdict.NotYet(place, r.config.lookAgain(gap.Waited), errEarly)
	}
	after := r.config.AfterWindow
	if r.config.OnGap != nil {
		if after, err = r.config.OnGap(ctx, t.tx, gap); err != nil {
			return failed, err
		}
	} else if replayed { // which is an answer
		after = Apply
	}
	if after == Quarantine {
		return givenUp, verdict.Forever(verdict.ReasonGap, &GapError{gap})
	}
	return appliedWithGap, nil
}
