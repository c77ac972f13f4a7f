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

// One transaction stores at most storeBatch messages. When their size reaches
// storeBytes, it stores no further message, because PostgreSQL accepts statements of at
// most 1 GB.
const (
	storeBatch = 100
	storeBytes = 8 << 20
)

// arrivals stores messages with an ordering key in the order of their arrival. At most
// one goroutine stores a batch. While it does, the next batch is collected.
type arrivals struct {
	*fetcher

	next     []*message.Message
	bytes    int       // bytes of the payloads of the messages in next
	storing  chan bool // receives whether the current batch was stored; nil if no batch is being stored
	rejected bool      // a message was nacked, so all later messages must be nacked too
}

// forward sends the transport's messages to the channel out, with the consumer's name
// in their contexts. With Config.KeyOrder, it stores messages that have an ordering key
// instead, and the fetcher delivers them later.
func (f *fetcher) forward(ctx context.Context, in <-chan *message.Message, out chan<- *message.Message) {
	a := &arrivals{fetcher: f}
	for in != nil || a.storing != nil || len(a.next) > 0 {
		if a.storing == nil && len(a.next) > 0 {
			a.store(ctx)
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

// ordered reports whether msg must be handled in order. The order of an undecodable
// message does not matter, because it will be quarantined.
func (f *fetcher) ordered(msg *message.Message) bool {
	return f.config.KeyOrder != Unordered && parked.OrderingKey(msg) != "" && disposition.Unrunnable(msg.Context()) == nil
}

func (a *arrivals) add(msg *message.Message) {
	a.next = append(a.next, msg)
	a.bytes += len(msg.Payload)
	a.nackRejected()
}

// nackRejected nacks all messages that arrived after a nacked message, because they
// must not be handled before it.
func (a *arrivals) nackRejected() {
	if !a.rejected {
		return
	}
	for _, msg := range a.next {
		msg.Nack()
	}
	a.next, a.bytes = nil, 0
}

// store starts to store the collected messages. Storing fails only if the consumer
// shuts down. After a timeout, store tries smaller batches, because the same batch
// could time out again and again.
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
		failpoint.Hit("retry/stored")
		msg.Ack()
	}
	a.instruments.stored.Add(int64(len(msgs)), 0)
	a.wakeUp()
}
