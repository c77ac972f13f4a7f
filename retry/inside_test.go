package retry_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/internal/testkit"
)

// The middleware of retry must be refused inside of dedup. There it would park the
// message and return nil. So dedup would commit the writes of the failed handler, and
// would later skip the retry as a duplicate.
func TestTrap38MiddlewareInsideDedupIsRefused(t *testing.T) {
	t.Parallel()
	testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
		b := newBench(t, db, nil)
		inbox, err := dedup.New(db.DB, dedup.Config{Schema: b.config})
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		h := func(*message.Message) ([]*message.Message, error) {
			calls++
			return nil, nil
		}
		deliver := func(h message.HandlerFunc) error {
			msg := message.NewMessage("m1", nil)
			msg.SetContext(parked.WithDelivery(t.Context(), &parked.Delivery{Consumer: consumer, Topic: topic, Subscribed: true}))
			_, err := h(msg)
			return err
		}
		err = deliver(inbox.Middleware(b.retries.Middleware(h)))
		if !errors.Is(err, parked.ErrInsideDedup) || disposition.Of(err).Kind != disposition.Undecided || calls != 0 {
			t.Errorf("inside of dedup: %v after %d calls", err, calls)
		}
		if err := deliver(b.retries.Middleware(inbox.Middleware(h))); err != nil || calls != 1 {
			t.Errorf("outside of dedup: %v after %d calls", err, calls)
		}
	})
}

// A message whose handler has failed is not handled in a batch again, because it would
// probably fail again. So the next try says that the message has failed before.
func TestNextTryKnowsOfTheFailure(t *testing.T) {
	t.Parallel()
	b := newBench(t, testkit.SQLite(t), nil)
	var failedBefore []bool
	msg := message.NewMessage("m1", nil)
	_, err := b.retries.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		failedBefore = append(failedBefore, parked.FailedBefore(msg.Context()))
		return nil, errHandler
	})(msg)
	if !errors.Is(err, errHandler) || !slices.Equal(failedBefore, []bool{false, true}) {
		t.Errorf("failed before: %v, error %v", failedBefore, err)
	}
}
