package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/parked"
)

// ErrRunning means that Forget was called for a consumer that is running, or was
// running less than two minutes ago.
var ErrRunning = errors.New("the consumer is running")

// Forget ends the registration of a consumer for topic. This is like deleting a queue:
// no more messages are stored for the consumer, and its waiting messages are deleted.
// Forget returns the number of deleted messages. Messages in quarantine and replayed
// messages are not deleted.
//
// Call Forget when you retire or rename a consumer. Otherwise messages accumulate under
// the old name. Forget fails with [ErrRunning] until the consumer has been stopped for
// two minutes. After another error, or if a Publish runs at the same time, some
// messages may remain. In this case, call Forget again.
func (t *Transport) Forget(ctx context.Context, consumer, topic string) (deleted int64, err error) {
	deleted, err = t.store.Unregister(ctx, consumer, topic)
	if running, ok := errors.AsType[*parked.RunningError](err); ok {
		return 0, fmt.Errorf("embedded: forget consumer %q of topic %q: %w: %w", consumer, topic, ErrRunning, running)
	}
	t.mu.Lock()
	delete(t.warned, registration{consumer, topic})
	t.mu.Unlock()
	if err != nil {
		return deleted, fmt.Errorf("embedded: %w", err)
	}
	t.config.Logger.Info("Consumer is no longer registered",
		watermill.LogFields{"consumer": consumer, "topic": topic, "deleted": deleted})
	return deleted, nil
}

// warnEvery is the shortest time between two log lines about the same consumer, see
// warn.
const warnEvery = time.Hour

// warn logs an error for each of the given consumers that was last seen AbsentAfter ago
// or earlier. It logs the same consumer at most once per warnEvery.
func (t *Transport) warn(to []parked.Consumer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range to {
		at := registration{c.Consumer, c.Topic}
		if c.Unseen < t.config.AbsentAfter {
			delete(t.warned, at)
			continue
		}
		if last, warned := t.warned[at]; warned && time.Since(last) < warnEvery {
			continue
		}
		t.warned[at] = time.Now()
		t.config.Logger.Error("Registered consumer is not running, messages pile up for it",
			fmt.Errorf("consumer %q of topic %q was last seen %v ago: start it, or end its registration with Transport.Forget",
				c.Consumer, c.Topic, c.Unseen.Truncate(time.Minute)),
			watermill.LogFields{"consumer": c.Consumer, "topic": c.Topic, "last_owner": c.Owner})
	}
}
