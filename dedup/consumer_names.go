package dedup

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// consumerNames detects handlers that use the consumer name of another handler.
type consumerNames struct {
	owners   sync.Map // name of the first handler of each consumerTopic
	reported sync.Map // each nameConflict that was reported
}

type consumerTopic struct{ consumer, topic string }

type nameConflict struct {
	consumerTopic

	handler string
}

// check returns an error if another handler already uses the consumer name for the same
// topic, because each of the two would skip messages that the other has handled. The
// result first is true only for the first such error of a handler. Messages of retry's
// Subscriber are not checked, because the Subscriber has already checked the name.
func (n *consumerNames) check(ctx context.Context, consumer string) (first bool, err error) {
	if parked.DeliveryOf(ctx).Subscribed {
		return false, nil
	}
	handler, at := message.HandlerNameFromCtx(ctx), consumerTopic{consumer, message.SubscribeTopicFromCtx(ctx)}
	owner, known := n.owners.Load(at)
	if !known {
		owner, known = n.owners.LoadOrStore(at, handler)
	}
	if !known || owner == handler {
		return false, nil
	}
	_, reported := n.reported.LoadOrStore(nameConflict{at, handler}, nil)
	return !reported, fmt.Errorf("%w: handler %q: consumer %q is already used by handler %q on topic %q; "+
		"give each handler its own consumer name", ErrConsumerInUse, handler, consumer, owner, at.topic)
}
