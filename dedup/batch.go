package dedup

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/parkedrows"
)

// Batch configures how messages share a transaction in [Inbox.BatchMiddleware] and
// [Inbox.BatchHandler]. The zero value is ready for use.
type Batch struct {
	// Size is the maximum number of messages in one transaction, from 1 to 1000. A batch cannot
	// have more messages than the transport has in flight: once.Consumer raises the default of
	// package rabbit for its handlers; with [Inbox.BatchMiddleware], set
	// rabbit.SubscriberConfig.InFlight to Size * (Concurrency + 1), so that the next batch can be
	// collected while others run. Defaults to 100.
	Size int

	// Wait is the longest time for which a message waits for others. A batch waits only while it
	// has fewer messages than the previous one, so a consumer with one message in flight waits
	// once. Defaults to 10 milliseconds.
	Wait time.Duration

	// Concurrency is how many batches of a handler run at the same time. Two that change the same
	// rows in different orders can deadlock; then one of them runs again. Defaults to 1.
	Concurrency int
}

// A statement has a limited number of parameters, several for each message's id and key.
const maxBatch = 1000

func (b Batch) withDefaults() Batch {
	b.Size = cmp.Or(b.Size, 100)
	b.Wait = cmp.Or(b.Wait, 10*time.Millisecond)
	b.Concurrency = cmp.Or(b.Concurrency, 1)
	return b
}

// While Concurrency batches run, one more is collected.
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

// BatchHandlerFunc handles several messages in one transaction: its writes through tx and the
// messages that it returns take effect together, or not at all. ctx ends when the context of any
// message ends. The messages are in no particular order, and have different ids. A returned message
// is published to the topic in its "once_topic" metadata, and gets a causation id only through
// [CausedBy].
//
// The handler must write only through tx, see [TxFromContext], must not end tx, and must not keep
// the messages. If it returns an error or panics, it is called again, once for each message.
type BatchHandlerFunc func(ctx context.Context, tx *sql.Tx, msgs []*message.Message) ([]*message.Message, error)

// BatchMiddleware is like [Inbox.Middleware], but several messages may share a transaction. It
// collects the messages in flight, inserts their ids with one statement, calls h for one message
// after another, and commits once. Each message is still applied once, and acked after the commit.
//
// If h returns an error or panics for a message, the transaction is rolled back. That message is
// then handled in its own transaction, and only a failure there counts as an attempt. The others
// are handled again as a batch, so h may be called several times even for a message that never
// fails.
func (i *Inbox) BatchMiddleware(h message.HandlerFunc) message.HandlerFunc {
	return i.middleware(i.newBatchers(oneByOne(h)).handleOnce)
}

// BatchHandler returns a handler that collects the messages in flight and calls h once
// with all of them. Otherwise it works like [Inbox.BatchMiddleware]. Add the
// middlewares of retry and poison as for any other handler.
func (i *Inbox) BatchHandler(h BatchHandlerFunc) message.HandlerFunc {
	return i.middleware(i.newBatchers(together(h)).handleOnce)
}

// CausedBy gives produced the id of msg as its causation id, and the trace and the tenant of msg,
// and returns it. Only a [BatchHandlerFunc] needs it.
func CausedBy(msg, produced *message.Message) *message.Message {
	causeOf(msg).mark(produced)
	return produced
}

// batchItem is a message that waits for its batch. The goroutine that delivered it waits for its
// result, nil if it was handled.
type batchItem struct {
	msg        *message.Message
	original   *message.Message // unchanged copy for the next attempt; a handler may change msg
	ctx        context.Context
	identities []identity
	early      error // error of the latest attempt if earlier versions are missing, otherwise nil
	called     bool  // the handler was called for the message
	result     chan error
}

func (it *batchItem) finish(err error) { it.result <- err }

var errAlone = errors.New("must be handled in its own transaction")

// batchers has the batchers of one handler, which can serve several consumers, by name.
type batchers struct {
	*Inbox

	handle batchFunc

	mu         sync.Mutex
	byConsumer map[string]*batcher
}

func (i *Inbox) newBatchers(handle batchFunc) *batchers {
	return &batchers{Inbox: i, handle: handle, byConsumer: map[string]*batcher{}}
}

func (bs *batchers) forConsumer(consumer string) *batcher {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.byConsumer[consumer] == nil {
		bs.byConsumer[consumer] = newBatcher(bs.Inbox, consumer, bs.handle)
	}
	return bs.byConsumer[consumer]
}

// handleOnce is like [Inbox.handleOnce], in a batch. If the context of msg ends before msg is in a
// batch, it returns an error, but never while a transaction uses msg.
func (bs *batchers) handleOnce(msg *message.Message, consumer string) error {
	identities, err := bs.identify(msg, consumer)
	if err != nil {
		return err
	}
	item := &batchItem{
		msg: msg, original: parkedrows.Snapshot(msg), ctx: msg.Context(),
		identities: identities, result: make(chan error, 1),
	}
	err = bs.forConsumer(consumer).submit(item)
	if v := chain.Of(err); item.called && item.ctx.Err() != nil && v.NotCalled && v.Early == nil {
		// No transaction can begin for the message any more. But the handler was called for it in a
		// batch, and this may be why the batch took so long, so the call must not count as "not
		// called".
		return chain.HandBack(err)
	}
	return err
}

func (b *batcher) submit(item *batchItem) (err error) {
	if !parkedrows.FailedBefore(item.ctx) { // a message that failed before would probably make its batch fail
		b.add(item)
		select {
		case err = <-item.result:
		case <-item.ctx.Done():
			if b.withdraw(item) {
				return errWaitEnded(item.ctx)
			}
			err = <-item.result
		}
		if !errors.Is(err, errAlone) {
			return err
		}
	}
	return b.handleAlone(item)
}

func errWaitEnded(ctx context.Context) error {
	return chain.NotCalled(fmt.Errorf("dedup: while waiting for a batch: %w", context.Cause(ctx)))
}

type batcher struct {
	*Inbox

	consumer     string
	handle       batchFunc
	alonePermits chan struct{}

	mu         sync.Mutex
	waiting    []*batchItem
	running    int           // number of batches that are being collected or handled
	collecting bool          // whether a batch is being collected
	lastSize   int           // number of messages in the previous batch
	reached    chan struct{} // receives a value when lastSize messages wait
}

// maxAlone limits the messages handled in their own transactions at the same time. It is above 1,
// because one that waits for a lock must not delay the others.
const maxAlone = 4

func newBatcher(i *Inbox, consumer string, handle batchFunc) *batcher {
	permits := maxAlone
	if i.dialect.SQLite() {
		permits = 1 // SQLite has one writer, so other transactions would only wait
	}
	return &batcher{
		Inbox: i, consumer: consumer, handle: handle,
		alonePermits: make(chan struct{}, permits), lastSize: i.config.Batch.Size, reached: make(chan struct{}, 1),
	}
}

func (b *batcher) add(item *batchItem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, item)
	b.startBatch()
	if len(b.waiting) >= b.lastSize {
		select {
		case b.reached <- struct{}{}:
		default:
		}
	}
}

// withdraw returns false if item is already in a batch.
func (b *batcher) withdraw(item *batchItem) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.waiting, item)
	if at >= 0 {
		b.waiting = slices.Delete(b.waiting, at, at+1)
	}
	return at >= 0
}

// startBatch is called when a message arrives or a batch ends. The caller must hold b.mu.
func (b *batcher) startBatch() {
	if len(b.waiting) > 0 && !b.collecting && b.running < b.config.Batch.Concurrency {
		b.collecting = true
		b.running++
		go b.collectAndRun()
	}
}

func (b *batcher) collectAndRun() {
	b.run(b.collect())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
	b.startBatch()
}

// collect waits for as many messages as the previous batch had, because about as many will probably
// arrive, but no longer than Batch.Wait.
func (b *batcher) collect() []*batchItem {
	timeout := time.NewTimer(b.config.Batch.Wait)
	defer timeout.Stop()
	for timedOut := false; ; {
		if batch, ok := b.takeBatch(timedOut); ok {
			return batch
		}
		select {
		case <-b.reached:
		case <-timeout.C:
			timedOut = true
		}
	}
}

func (b *batcher) takeBatch(anySize bool) ([]*batchItem, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) < b.lastSize && !anySize {
		return nil, false
	}
	n := min(len(b.waiting), b.config.Batch.Size)
	batch := slices.Clone(b.waiting[:n])
	b.waiting = slices.Delete(b.waiting, 0, n)
	b.lastSize = max(n, 1)
	b.collecting = false
	b.startBatch()
	return batch, true
}

// handleAlone runs in the goroutine that delivered the message.
func (b *batcher) handleAlone(item *batchItem) error {
	select {
	case b.alonePermits <- struct{}{}:
	case <-item.ctx.Done():
		return errWaitEnded(item.ctx)
	}
	defer func() { <-b.alonePermits }()
	b.run([]*batchItem{item})
	return <-item.result
}
