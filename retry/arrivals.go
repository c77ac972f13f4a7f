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

// A transaction stores at most storeBatch messages. It ends after the message
// with which it exceeds storeBytes: PostgreSQL accepts a statement of 1 GB at
// most.
const (
	storeBatch = 100
	storeBytes = 8 << 20
)

// arrivals stores the messages of ordering keys in the order of their arrival.
// One goroutine at a time stores a batch; meanwhile arrivals collects the next.
type arrivals struct {
	*fetcher

	next     []*message.Message
	bytes    int       // payload bytes of next
	storing  chan bool // receives whether the current batch was stored; nil if there is none
	rejected bool      // a message was nacked, so all later messages are nacked too
}

// forward sends the transport's messages to out, with the consumer's name in
// their contexts. With Config.KeyOrder it stores the messages with an ordering
// key instead, and the fetcher delivers them later.
func (f *fetcher) forward(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message) {
	a := &arrivals{fetcher: f}
	for in != nil || a.storing != nil || len(a.next) > 0 {
		if a.storing == nil && len(a.next) > 0 {
			a.store(context.WithoutCancel(ctx))
			continue
		}
		from := in
		if len(a.next) == storeBatch || a.bytes >= storeBytes {
			from = nil
		}
		select {
		case msg, ok := <-from:
			switch {
			case !ok:
				in = nil
			case f.ordered(msg):
				a.add(msg)
			default:
				msg.SetContext(parked.WithDelivery(msg.Context(), f.delivery(nil)))
				select {
				case out <- msg:
				case <-f.closeTimeout:
					f.unanswered.Add(1)
					msg.Nack()
				}
			}
		case ok := <-a.storing:
			a.storing, a.rejected = nil, !ok
			a.nackRejected()
		}
	}
}

// ordered reports whether the order of msg matters. It does not for an
// undecodable message, because that is quarantined.
func (f *fetcher) ordered(msg *message.Message) bool {
	return f.config.KeyOrder != Unordered && parked.OrderingKey(msg) != "" && disposition.Undecodable(msg.Context()) == nil
}

func (a *arrivals) add(msg *message.Message) {
	a.next = append(a.next, msg)
	a.bytes += len(msg.Payload)
	a.nackRejected()
}

// nackRejected nacks all messages that arrived after a nacked message: they
// would overtake it.
func (a *arrivals) nackRejected() {
	if !a.rejected {
		return
	}
	for _, msg := range a.next {
		msg.Nack()
	}
	a.next, a.bytes = nil, 0
}

// store starts to store the collected messages. It fails only when the consumer
// shuts down. After a timeout it stores fewer messages at once, because the same
// batch could time out for ever.
func (a *arrivals) store(ctx context.Context) {
	left, part := a.next, len(a.next)
	a.next, a.bytes, a.storing = nil, 0, make(chan bool, 1)
	go func(stored chan<- bool) {
		patience := a.patience
		patience.UnackedWait = math.MaxInt64
		err := patience.Persist(ctx, a.delivery(nil), "store messages in the order of their keys", func(ctx context.Context) error {
			for len(left) > 0 {
				batch := left[:min(part, len(left))]
				err := a.Retries.store.DeliverTo(ctx, a.topic, []parked.Subscription{a.subscription()}, batch...)
				if err != nil {
					if ctx.Err() != nil {
						part = max(part/2, 1)
					}
					return err
				}
				a.ackStored(batch)
				left = left[len(batch):]
			}
			return nil
		})
		if err != nil {
			a.config.Logger.Info("Messages are nacked because the consumer shuts down",
				watermill.LogFields{"consumer": a.consumer, "topic": a.topic, "messages": len(left), "err": err.Error()})
		}
		for _, msg := range left {
			msg.Nack()
		}
		stored <- err == nil
	}(a.storing)
}

func (a *arrivals) ackStored(msgs []*message.Message) {
	for _, msg := range msgs {
		failpoint.Hit("retry/kept")
		msg.Ack()
	}
	a.instruments.kept.Add(int64(len(msgs)), 0)
	a.wakeUp()
}
