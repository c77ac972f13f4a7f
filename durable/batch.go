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

// stream stores the messages of one subscription. One goroutine collects the messages
// into batches. Another goroutine stores one batch after another, so that the rows are
// in the order of arrival.
type stream struct {
	*Storage

	ctx          context.Context
	subscription parked.Subscription
	delivery     *parked.Delivery
	batches      chan batch
	ended        chan struct{} // closed when the transport delivers no more messages

	stored       atomic.Int64   // number of stored messages
	storedBefore int64          // value of stored when later messages were last allowed to pass a refused batch
	passedAt     time.Time      // when storedBefore was last set, or zero
	refused      sync.WaitGroup // refused batches that are tried again while later messages pass
}

// maxBytes is the maximum size of a batch. A single message may exceed it.
const maxBytes = 8 << 20

// batch contains messages that are stored with one statement.
type batch struct {
	messages []*message.Message
	rows     *parked.Batch
	since    time.Time // when the first message arrived
}

// add adds a message to b, and prepares its row. At the same time, another goroutine
// may be storing the previous batch.
func (s *stream) add(b *batch, msg *message.Message) {
	if len(b.messages) == 0 {
		b.rows, b.since = parked.NewBatch(s.delivery.Topic, s.subscription), time.Now()
	}
	b.messages = append(b.messages, msg)
	b.rows.Add(msg)
}

// collect collects messages into batches until the transport delivers no more messages.
func (s *stream) collect(in <-chan *message.Message, out chan<- *message.Message) {
	defer close(s.ended)
	defer close(s.batches)
	wait := time.NewTimer(0)
	defer wait.Stop()
	var b batch
	for waited := true; in != nil || len(b.messages) > 0; {
		full := len(b.messages) == s.config.BatchSize || len(b.messages) > 0 && b.rows.Bytes() >= maxBytes
		receive, batches := in, s.batches
		if full { // receive no more messages, so that the transport waits as it does for a slow handler
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
			case disposition.Unrunnable(msg.Context()) != nil:
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
