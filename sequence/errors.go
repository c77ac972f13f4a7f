package sequence

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrGap says that a version before the message's did not come in time, or
	// that the message came after a higher version had been applied without it.
	ErrGap = errors.New("a gap in the versions")

	// ErrInvalidVersion says that a message has metadata about its aggregate
	// which cannot be used: a version that is not a whole number of at least 0,
	// one that is below the first, or a type or id that is no text or has more
	// than 255 bytes.
	ErrInvalidVersion = errors.New("unusable aggregate metadata")

	// ErrNoTx says that the middleware runs outside of a transaction.
	ErrNoTx = errors.New("there is no transaction: the middleware belongs inside of dedup's")

	// ErrNoConsumer says that there is no name to remember versions under.
	ErrNoConsumer = errors.New("no consumer name: use the middleware in a router, or with retry's Subscriber")

	// ErrNoSubscriber says that a message cannot be held, because it did not
	// come through retry's Subscriber.
	ErrNoSubscriber = errors.New("HoldForGap needs retry's Subscriber, which names the consumer and brings back what is held")
)

// Gap is what is missing before a message can be applied in order.
type Gap struct {
	Consumer      string
	AggregateType string
	AggregateID   string
	Version       int64         // of the message
	Last          int64         // that was applied; First-1 if none was; above Version if the message is late
	First         int64         // that aggregates begin with, by Config.First
	Waited        time.Duration // since the message was found to be early
}

// GapError is the error of a message that was given up. It unwraps to
// [ErrGap].
type GapError struct{ Gap }

func (e *GapError) Error() string {
	switch {
	case e.Last >= e.Version:
		return fmt.Sprintf("sequence: version %d of %s %q came after version %d had been applied without it: "+
			"replay it to apply it now, out of order, or discard it", e.Version, e.AggregateType, e.AggregateID, e.Last)
	case e.Last < e.First:
		return fmt.Sprintf("sequence: version %d of %s %q came, and none before it in %v: versions must begin at %d (Config.First); "+
			"replay it to begin with it", e.Version, e.AggregateType, e.AggregateID, e.Waited.Round(time.Millisecond), e.First)
	}
	return fmt.Sprintf("sequence: version %d of %s %q came after version %d, and what is between did not come in %v",
		e.Version, e.AggregateType, e.AggregateID, e.Last, e.Waited.Round(time.Millisecond))
}

// Unwrap returns [ErrGap].
func (e *GapError) Unwrap() error { return ErrGap }
