package retry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/parked"
)

// registerAgain is the pause after a failed registration.
const registerAgain = 5 * time.Second

// register records in the database that the consumer runs. It returns the time until it
// must be called again.
func (f *fetcher) register(ctx context.Context) (next time.Duration) {
	ctx, cancel := f.withLeaseTimeout(ctx)
	defer cancel()
	own := parked.Consumer{
		Consumer: f.consumer, Topic: f.topic, KeyOrder: f.config.KeyOrder != Unordered, Handler: f.use.Handler(), Owner: f.owner,
	}
	before, err := f.store.Register(ctx, own)
	if err == nil {
		f.logOtherHandler(own.OtherHandler(before))
		f.registered, f.registerFailed = true, false
		return f.registerEvery
	}
	if !f.registerFailed && !errors.Is(ctx.Err(), context.Canceled) {
		f.registerFailed = true
		f.config.Logger.Error("Consumer cannot be registered as running, retrying", err,
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
	}
	return registerAgain
}

// leavePatience is how long the end of a subscription waits for the statement that
// records this end.
const leavePatience = time.Second

// leave records that this instance of the consumer has ended. If this fails, the
// instance still counts as running for the time parked.AbsentAfter.
func (f *fetcher) leave(ctx context.Context) {
	if !f.registered {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	if err := f.store.Leave(ctx, f.consumer, f.topic, f.owner); err != nil {
		f.config.Logger.Debug("End of the consumer's instance cannot be recorded",
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "error": err.Error()})
	}
}

// logOtherHandler logs, once, that another handler runs under the consumer's name. It
// does nothing at the first registration, because the database may still contain the
// registration of a process that has just ended.
func (f *fetcher) logOtherHandler(other string) {
	if !f.registered || other == "" || other == f.loggedOtherHandler {
		return
	}
	f.loggedOtherHandler = other
	f.config.Logger.Error("Consumer name is used by two handlers, each skips messages that the other has handled",
		fmt.Errorf("consumer %q on topic %q is also run by %s: give each handler its own consumer name, "+
			"unless a deploy is just renaming this one", f.consumer, f.topic, other),
		watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
}
