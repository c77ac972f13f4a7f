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

// Batch is how messages share a transaction in [Inbox.BatchMiddleware] and
// [Inbox.BatchHandler]. The zero value is ready for use.
type Batch struct {
	// Size is how many messages share a transaction at most, 1 to 1000. No more
	// than the transport has in flight can meet there: with RabbitMQ, let
	// rabbit.SubscriberConfig.InFlight be twice the Size. Defaults to 100.
	Size int

	// Wait is how long a message waits at most for others to come. That it
	// does only while fewer have come than were in the batch before, so one
	// that travels alone does not wait. Defaults to 10 milliseconds.
	Wait time.Duration

	// Concurrency is how many batches of a handler are under way at once. Two
	// batches that change the same rows in different order can deadlock, and
	// are then done again. Defaults to 1.
	Concurrency int
}

// maxBatch keeps a batch, of which each message may have a key, within the
// parameters of one statement.
const maxBatch = 1000

func (b Batch) withDefaults() Batch {
	b.Size = cmp.Or(b.Size, 100)
	b.Wait = cmp.Or(b.Wait, 10*time.Millisecond)
	b.Concurrency = cmp.Or(b.Concurrency, 1)
	return b
}

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

// BatchHandlerFunc handles several messages in one transaction. What it writes
// through tx and the messages it returns take effect together, or not at all;
// ctx ends when that of any message does. The messages are in no particular
// order, and no two have the same id. A returned message goes to the topic in its
// "once_topic" metadata; what caused it is not known unless [CausedBy] says so.
//
// It must write through tx and through nothing else, as [TxFromContext] says. It
// must not end tx, nor keep the messages. When it returns an error, or
// panics, it is called again with each message alone.
type BatchHandlerFunc func(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error)

// BatchMiddleware is [Inbox.Middleware] for a handler that says it may share
// its transaction with other messages: those in flight at the same time are
// gathered, claimed with one statement, given to h one after another, and
// committed at once. Each is still applied once, and acked after the commit.
//
// When h fails for one of them, or panics, the transaction is rolled back. That
// message has its next try, the one that is charged if it fails, in a transaction
// of its own, and the others are done again. So h may be called several times
// for a message that no one has anything against.
func (i *Inbox) BatchMiddleware(h message.HandlerFunc) message.HandlerFunc {
	return i.middleware(i.newLines(each(h)).once)
}

// BatchHandler returns a handler that gathers the messages in flight at the
// same time and gives them to h together, with the rest as in
// [Inbox.BatchMiddleware]. retry and poison go around it as around any handler.
func (i *Inbox) BatchHandler(h BatchHandlerFunc) message.HandlerFunc {
	return i.middleware(i.newLines(together(h)).once)
}

// CausedBy says that handling msg produced the message that is returned, which
// takes over the trace and the tenant of msg. Only a [BatchHandlerFunc] needs
// it.
func CausedBy(msg, produced *message.Message) *message.Message {
	causeOf(msg).mark(produced)
	return produced
}
