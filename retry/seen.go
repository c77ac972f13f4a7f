package retry

import (
	"context"
	"errors"
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
	_, err := f.store.See(ctx, parked.Consumer{
		Consumer: f.consumer, Topic: f.topic, KeyOrder: f.config.KeyOrder != Unordered, Owner: f.owner,
	})
	if err == nil {
		f.unseen = false
		return parked.SeenEvery
	}
	if !f.unseen && !errors.Is(ctx.Err(), context.Canceled) {
		f.unseen = true
		f.config.Logger.Error("Cannot register the consumer as running, trying on", err,
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic})
	}
	return seeAgain
}
