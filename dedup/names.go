package dedup

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// names are the handlers of a router that an Inbox is around, by what their
// messages are remembered under.
type names struct {
	first sync.Map // handler, by name
	told  sync.Map // name and handler
}

type name struct{ consumer, topic string }

type namesake struct {
	name

	handler string
}

// check returns an error if a handler has the consumer's name of another: each
// would skip what the other has done. first says that it is the first one for
// the handler. Behind retry's Subscriber, that has looked already.
func (n *names) check(ctx context.Context, consumer string) (first bool, err error) {
	if parked.DeliveryOf(ctx).Subscribed {
		return false, nil
	}
	handler, at := message.HandlerNameFromCtx(ctx), name{consumer, message.SubscribeTopicFromCtx(ctx)}
	other, known := n.first.Load(at)
	if !known {
		other, known = n.first.LoadOrStore(at, handler)
	}
	if !known || other == handler {
		return false, nil
	}
	_, told := n.told.LoadOrStore(namesake{at, handler}, nil)
	return !told, fmt.Errorf("%w: handler %q: consumer %q is already used by handler %q on topic %q; give each handler its own consumer name",
		ErrConsumerInUse, handler, consumer, other, at.topic)
}
