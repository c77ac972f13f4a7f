package dedup

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Batch configures how messages share a transaction in [Inbox.BatchMiddleware] and
// [Inbox.BatchHandler]. The zero value is ready for use.
type Batch struct {
	// Size is the maximum number of messages in one transaction, from 1 to 1000. A batch
	// cannot have more messages than the transport has in flight. For the handlers of
	// once.Consumer, package rabbit automatically raises its default number of messages in
	// flight. With [Inbox.BatchMiddleware], set rabbit.SubscriberConfig.InFlight to
	// Size * (Concurrency + 1), so that the next batch can be collected while others run.
	// Defaults to 100.
	Size int

	// Wait is the longest time for which a message waits for further messages of its batch.
	// A batch waits only while it has fewer messages than the previous batch had. If the
	// consumer has only one message in flight, each batch has one message, so only the
	// first batch waits. Defaults to 10 milliseconds.
	Wait time.Duration

	// Concurrency is how many batches of a handler run at the same time. Two batches that
	// change the same rows in different orders can deadlock. The batch that fails then runs
	// again. Defaults to 1.
	Concurrency int
}

// maxBatch is the maximum size of a batch. A statement has a limited number of
// parameters. Each message needs several parameters for its id. If it has a key, it
// needs the same number again for the key.
const maxBatch = 1000

func (b Batch) withDefaults() Batch {
	b.Size = cmp.Or(b.Size, 100)
	b.Wait = cmp.Or(b.Wait, 10*time.Millisecond)
	b.Concurrency = cmp.Or(b.Concurrency, 1)
	return b
}

// inFlight returns how many messages must be in flight so that all batches are full.
// While Concurrency batches run, one more batch is collected.
func (b Batch) inFlight() int { return b.Size * (b.Concurrency + 1) }

func (b Batch) validate() error {
	var errs []error
	if b.Size < 1 || b.Size > maxBatch {
		errs = append(errs, fmt.Errorf("Batch.Size is %d, not in 1..%d", b.Size, maxBatch))
	}
	if b.Wait < 0 {
		errs = append(errs, fmt.Errorf("Batch.Wait is %v: negative", b.Wait))
	}
	if b.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("Batch.Concurrency is %d: negative", b.Concurrency))
	}
	return errors.Join(errs...)
}

// BatchHandlerFunc handles several messages in one transaction. The writes of the
// handler through tx and the messages that it returns take effect together, or not at
// all. The context ctx ends when the context of any message ends. The messages are in
// no particular order, and no two messages have the same id. A returned message is
// published to the topic in its "once_topic" metadata. It gets a causation id only if
// the handler calls [CausedBy].
//
// The handler must write only through tx, see [TxFromContext]. It must not commit or
// roll back tx, and must not keep the messages after it has returned. If it returns an
// error or panics, it is called again, once for each message.
type BatchHandlerFunc func(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error)

// BatchMiddleware is like [Inbox.Middleware], but several messages may share a
// transaction. It collects the messages in flight, inserts their ids with one
// statement, calls h for one message after another, and commits once. Each message is
// still applied once, and acked after the commit.
//
// If h returns an error or panics for a message, the transaction is rolled back. This
// message is then handled in a separate transaction, and only a failure in that
// transaction counts as an attempt. The other messages are handled again as a batch. So
// h may be called several times even for a message that never fails.
func (i *Inbox) BatchMiddleware(h message.HandlerFunc) message.HandlerFunc {
	return i.middleware(i.newBatchers(oneByOne(h)).handleOnce)
}

// BatchHandler returns a handler that collects the messages in flight and calls h once
// with all of them. Otherwise it works like [Inbox.BatchMiddleware]. Add the
// middlewares of retry and poison as for any other handler.
func (i *Inbox) BatchHandler(h BatchHandlerFunc) message.HandlerFunc {
	return i.middleware(i.newBatchers(together(h)).handleOnce)
}

// CausedBy links a produced message to msg, the message that caused it, and returns the
// produced message. The causation id of the produced message becomes the id of msg. The
// trace and the tenant of msg are copied, too. You need CausedBy only in a
// [BatchHandlerFunc].
func CausedBy(msg, produced *message.Message) *message.Message {
	causeOf(msg).mark(produced)
	return produced
}
