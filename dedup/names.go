package dedup

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
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

// check logs, once for each, that a handler has the consumer's name of another:
// nothing else would tell that each skips what the other has done. It is no error,
// since the two may be one handler that was added twice, to have more in flight.
func (n *names) check(ctx context.Context, consumer string, logger watermill.LoggerAdapter) {
	handler, at := message.HandlerNameFromCtx(ctx), name{consumer, message.SubscribeTopicFromCtx(ctx)}
	first, known := n.first.Load(at)
	if !known {
		first, known = n.first.LoadOrStore(at, handler)
	}
	if !known || first == handler {
		return
	}
	if _, told := n.told.LoadOrStore(namesake{at, handler}, nil); told {
		return
	}
	logger.Error("Two handlers have one consumer's name: each skips what the other has done",
		fmt.Errorf("the handlers %q and %q are both remembered as %q: give each a name of its own, unless they are the same",
			first, handler, consumer),
		watermill.LogFields{"consumer": consumer, "topic": at.topic})
}
