package sequence

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrGap means that a version before the message's version did not arrive in time, or
	// that the message arrived after a higher version was applied without it.
	ErrGap = errors.New("a gap in the versions")

	// ErrInvalidVersion means that the aggregate metadata of a message cannot be used. The
	// version must be a whole number, and not lower than the first version, see
	// Config.First. The type and the id of the aggregate must be valid UTF-8 of at most 255
	// bytes.
	ErrInvalidVersion = errors.New("unusable aggregate metadata")

	// ErrStale means that a replayed message was not handled, because its version is not
	// above the last applied version. The message goes back to quarantine.
	ErrStale = errors.New("the version is stale")

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
	First         int64         // lowest version of an aggregate, see Config.First
	Waited        time.Duration // time since the message was first found to be early
}

// GapError is the error of a message that goes to quarantine because of a gap. It
// unwraps to [ErrGap].
type GapError struct{ Gap }

func (e *GapError) Error() string {
	switch {
	case e.Last >= e.Version:
		return fmt.Sprintf("sequence: version %d of %s %q came after version %d had been applied without it: "+
			"replay it to apply it now, out of order, or discard it", e.Version, e.AggregateType, e.AggregateID, e.Last)
	case e.Last < e.First:
		return fmt.Sprintf("sequence: version %d of %s %q came, and no earlier version in %v: versions must begin at %d (Config.First); "+
			"replay it to begin with it", e.Version, e.AggregateType, e.AggregateID, e.Waited.Round(time.Millisecond), e.First)
	}
	return fmt.Sprintf("sequence: version %d of %s %q came after version %d, and the versions between did not come in %v",
		e.Version, e.AggregateType, e.AggregateID, e.Last, e.Waited.Round(time.Millisecond))
}

// Unwrap returns [ErrGap].
func (e *GapError) Unwrap() error { return ErrGap }
