package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/parked"
)

// ErrRunning says that a consumer cannot be forgotten, because it is running or
// was until a moment ago.
var ErrRunning = errors.New("the consumer is running")

// Forget ends the registration of a consumer for topic, as deleting a queue
// does: no more messages are stored for it, and those that wait for it are
// deleted. It returns how many that were. Messages in quarantine stay, as do
// those that were replayed.
//
// Call it when a consumer is retired or renamed; without it messages pile up
// under the old name. It fails with [ErrRunning] until the consumer has been
// stopped for two minutes. After another error some messages may be left: call
// it again. The same holds for a Publish that runs at the same time.
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

// warnEvery is how often Publish tells of a consumer that does not run.
const warnEvery = time.Hour

// warn logs consumers that messages pile up for.
func (t *Transport) warn(to []parked.Consumer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range to {
		at := registration{c.Consumer, c.Topic}
		if c.Unseen < t.config.AbsentAfter {
			delete(t.warned, at)
			continue
		}
		if last, told := t.warned[at]; told && time.Since(last) < warnEvery {
			continue
		}
		t.warned[at] = time.Now()
		t.config.Logger.Error("Registered consumer is not running, messages pile up for it",
			fmt.Errorf("consumer %q of topic %q was last seen %v ago: start it, or end its registration with Transport.Forget",
				c.Consumer, c.Topic, c.Unseen.Truncate(time.Minute)),
			watermill.LogFields{"consumer": c.Consumer, "topic": c.Topic, "last_owner": c.Owner})
	}
}
