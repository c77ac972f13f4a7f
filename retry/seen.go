package retry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/watermill-once/once/internal/parked"
)

// seeAgain is when, after a failure to say that the consumer runs.
const seeAgain = 5 * time.Second

// see says in the database that the consumer runs, and returns when to say so
// again.
func (f *feed) see(ctx context.Context) (next time.Duration) {
	ctx, cancel := f.briefly(ctx)
	defer cancel()
	me := parked.Consumer{
		Consumer: f.consumer, Topic: f.topic, KeyOrder: f.config.KeyOrder != Unordered, Handler: f.use.Handler(), Owner: f.owner,
	}
	before, err := f.store.See(ctx, me)
	if err == nil {
		f.tellTwin(me.Twin(before))
		f.seen, f.unseen = true, false
		return f.seenEvery
	}
	if !f.unseen && !errors.Is(ctx.Err(), context.Canceled) {
		f.unseen = true
		f.config.Logger.Error("Cannot register the consumer as running, trying on", err,
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
	}
	return seeAgain
}

// tellTwin logs another handler that runs under the consumer's name, once. At
// the first look it may be one that has ended a moment ago.
func (f *feed) tellTwin(twin string) {
	if !f.seen || twin == "" || twin == f.twin {
		return
	}
	f.twin = twin
	f.config.Logger.Error("Consumer name is used by two handlers, each skips what the other has done",
		fmt.Errorf("consumer %q on topic %q is also run by %s: give each handler its own consumer name, "+
			"unless a deploy is just renaming this one", f.consumer, f.topic, twin),
		watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
}
