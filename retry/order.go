package retry

import (
	"context"
	"math"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
)

// KeyOrder says whether messages of one ordering key are handled in order, and
// what happens to the successors of one that fails. The key is in the metadata
// "once_ordering_key", which outbox and forwarder send along.
type KeyOrder int

const (
	// Unordered handles messages as they come.
	Unordered KeyOrder = KeyOrder(parked.Unordered)

	// BlockWhileRetried handles messages of one key one after another, in the order in which
	// they arrived. Those behind one that fails are held while it is retried. If
	// it is given up they are handled: a hopeless message does not stop its key
	// for ever.
	BlockWhileRetried KeyOrder = KeyOrder(parked.BlockWhileRetried)

	// BlockWhileQuarantined is BlockWhileRetried, but they are also held while it is in quarantine: until
	// it is replayed and handled, or discarded.
	BlockWhileQuarantined KeyOrder = KeyOrder(parked.BlockWhileQuarantined)

	// BlockWhileRunning is BlockWhileRetried, but they are handled already while it waits for its
	// next round.
	BlockWhileRunning KeyOrder = KeyOrder(parked.BlockWhileRunning)
)

// Bounds of what is stored in one transaction: messages, and bytes of which
// there may be more by one message. PostgreSQL takes a statement of 1 GB at most.
const (
	storeBatch = 100
	storeBytes = 8 << 20
)

// keeper stores the messages of ordering keys in the order in which they
// arrive. One goroutine at a time does so, and meanwhile the next are
// collected.
type keeper struct {
	*feed

	next    []*message.Message
	bytes   int       // of their payloads
	storing chan bool // is told whether those before them were stored; nil while none are being
	closed  bool      // to all that come: one was handed back
}

// forward passes the transport's messages on, with the consumer's name. With
// KeyOrder those of a key are stored instead, and come back with what is
// parked.
func (f *feed) forward(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message) {
	k := &keeper{feed: f}
	for in != nil || k.storing != nil || len(k.next) > 0 {
		if k.storing == nil && len(k.next) > 0 {
			k.store(context.WithoutCancel(ctx))
			continue
		}
		from := in
		if len(k.next) == storeBatch || k.bytes >= storeBytes {
			from = nil
		}
		select {
		case msg, ok := <-from:
			switch {
			case !ok:
				in = nil
			case f.ordered(msg):
				k.add(msg)
			default:
				msg.SetContext(parked.WithDelivery(msg.Context(), f.delivery(nil)))
				select {
				case out <- msg:
				case <-f.over:
					f.givenBack.Add(1)
					msg.Nack()
				}
			}
		case ok := <-k.storing:
			k.storing, k.closed = nil, !ok
			k.refuse()
		}
	}
}

// ordered says whether msg has a place in the order of a key. What could not be
// decoded has none: it is quarantined.
func (f *feed) ordered(msg *message.Message) bool {
	return f.config.KeyOrder != Unordered && parked.OrderingKey(msg) != "" && disposition.Undecodable(msg.Context()) == nil
}

func (k *keeper) add(msg *message.Message) {
	k.next = append(k.next, msg)
	k.bytes += len(msg.Payload)
	k.refuse()
}

// refuse hands back everything that came after a message that was: it would
// overtake it.
func (k *keeper) refuse() {
	if !k.closed {
		return
	}
	for _, msg := range k.next {
		msg.Nack()
	}
	k.next, k.bytes = nil, 0
}

// store begins to store what was collected. It gives up only when the consumer
// shuts down. What takes longer than a try may is stored in parts: tried as it
// is, it could fail for ever.
func (k *keeper) store(ctx context.Context) {
	left, part := k.next, len(k.next)
	k.next, k.bytes, k.storing = nil, 0, make(chan bool, 1)
	go func(stored chan<- bool) {
		patience := k.patience
		patience.UnackedWait = math.MaxInt64
		err := patience.Persist(ctx, k.delivery(nil), "store messages in the order of their keys", func(ctx context.Context) error {
			for len(left) > 0 {
				some := left[:min(part, len(left))]
				err := k.Retries.store.DeliverTo(ctx, k.topic, []parked.Subscription{k.subscription()}, some...)
				if err != nil {
					if ctx.Err() != nil {
						part = max(part/2, 1)
					}
					return err
				}
				k.kept(some)
				left = left[len(some):]
			}
			return nil
		})
		if err != nil {
			k.config.Logger.Info("Messages are handed back, the consumer shuts down",
				watermill.LogFields{"consumer": k.consumer, "topic": k.topic, "err": err.Error()})
		}
		for _, msg := range left {
			msg.Nack()
		}
		stored <- err == nil
	}(k.storing)
}

// kept acks messages that are stored.
func (k *keeper) kept(msgs []*message.Message) {
	for _, msg := range msgs {
		failpoint.Hit("retry/kept")
		msg.Ack()
	}
	k.instruments.kept.Add(int64(len(msgs)), 0)
	k.wakeUp()
}

// tidy sets right what is held and has nothing to wait for.
func (f *feed) tidy(ctx context.Context) {
	ctx, cancel := f.briefly(ctx)
	defer cancel()
	set, err := f.store.Tidy(ctx, f.consumer, f.topic, parked.KeyOrder(f.config.KeyOrder))
	if err != nil {
		f.report(ctx, err)
	}
	if set > 0 {
		f.config.Logger.Info("Messages that were held have nothing to wait for any more, and go on",
			watermill.LogFields{"consumer": f.consumer, "topic": f.topic, "keys": set})
		f.wakeUp()
	}
}
