package durable

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/parked"
)

// stream is the way of one subscription's messages into the table. One
// goroutine gathers them into batches, and another stores one batch after the
// other: what came first has the lower row.
type stream struct {
	*Storage

	ctx          context.Context
	subscription parked.Subscription
	delivery     *parked.Delivery
	batches      chan batch
	ended        chan struct{} // closed when nothing comes any more

	stored   atomic.Int64   // messages
	passed   int64          // how many were, when others were last to pass what was refused
	passedAt time.Time      // when that was; zero if never
	aside    sync.WaitGroup // of what others have passed
}

// maxBytes bounds a batch of large messages.
const maxBytes = 8 << 20

// batch is messages that are stored together.
type batch struct {
	messages []*message.Message
	rows     *parked.Batch
	since    time.Time // the first came
}

// add makes the message's row, while the batch before is being stored.
func (s *stream) add(b *batch, msg *message.Message) {
	if len(b.messages) == 0 {
		b.rows, b.since = parked.NewBatch(s.delivery.Topic, s.subscription), time.Now()
	}
	b.messages = append(b.messages, msg)
	b.rows.Add(msg)
}

// gather collects messages until there are no more.
func (s *stream) gather(in <-chan *message.Message, out chan<- *message.Message) {
	defer close(s.ended)
	defer close(s.batches)
	wait := time.NewTimer(0)
	defer wait.Stop()
	var b batch
	for waited := true; in != nil || len(b.messages) > 0; {
		full := len(b.messages) == s.config.BatchSize || len(b.messages) > 0 && b.rows.Bytes() >= maxBytes
		receive, batches := in, s.batches
		if full { // the transport waits, as it would for a handler
			receive = nil
		}
		if len(b.messages) == 0 || !waited && !full && in != nil {
			batches = nil
		}
		select {
		case msg, ok := <-receive:
			switch {
			case !ok:
				in = nil
			case disposition.Undecodable(msg.Context()) != nil:
				out <- msg
			default:
				if len(b.messages) == 0 {
					waited = false
					wait.Reset(s.config.BatchWait)
				}
				s.add(&b, msg)
			}
		case batches <- b:
			b = batch{}
		case <-wait.C:
			waited = true
		}
	}
}
