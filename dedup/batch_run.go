package dedup

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/backoff"
	"github.com/watermill-once/once/internal/chain"
	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parkedrows"
)

// maxConflictRetries limits repetitions because of deadlocks or serialization failures.
const maxConflictRetries = 3

var conflictPauses = backoff.Exponential{Base: 10 * time.Millisecond, Max: 100 * time.Millisecond, Jitter: 1}

func (b *batcher) run(batch []*batchItem) {
	duplicates := &batchRun{items: batch}
	for len(duplicates.items) > 0 {
		batch, duplicates.items = splitDuplicates(duplicates.items)
		b.runDistinct(batch)
	}
}

// splitDuplicates separates further deliveries of the same message, for a later transaction, which
// then finds the message in the inbox.
func splitDuplicates(batch []*batchItem) (first, duplicates []*batchItem) {
	seen := make(map[string]bool, len(batch))
	for _, item := range batch {
		if slices.ContainsFunc(item.identities, func(id identity) bool { return seen[id.id] }) {
			duplicates = append(duplicates, item)
			continue
		}
		first = append(first, item)
		for _, id := range item.identities {
			seen[id.id] = true
		}
	}
	return first, duplicates
}

func (b *batcher) runDistinct(batch []*batchItem) {
	r := &batchRun{batcher: b, items: batch}
	for conflicts, separated := 0, false; len(r.items) > 0; {
		size := len(r.items)
		err := chain.Run(r.runTx)
		b.instruments.batchEnded(size, err)
		if err == nil {
			r.finish(nil)
			return
		}
		failpoint.Hit("dedup/batch-undone")
		r.restoreMessages()
		switch {
		case r.separate(func(item *batchItem) bool { return item.ctx.Err() != nil && size > 1 }), errors.Is(err, errPartlyHandled):
		case errors.Is(err, errEarly):
			r.finishEarly()
		case conflicted(err) && conflicts < maxConflictRetries:
			conflicts++
			time.Sleep(conflictPauses.Jittered(conflicts)) //nolint:forbidigo // 0.1 s at most, in which the other transaction may end
		// The handler may have committed the inbox rows of all messages. Handled one by one, they
		// would be skipped as duplicates, although not all were handled. So all messages get the
		// error.
		case size == 1, errors.Is(err, errTxEnded), !r.called && b.databaseFailed(err):
			r.finish(err)
		case r.failing != nil && !separated:
			separated = true
			r.separate(func(item *batchItem) bool { return item == r.failing })
		default: // several messages fail, or it is unknown which one fails
			r.finish(errAlone)
		}
	}
}

// databaseFailed reports whether an error before the call of the handler affects the whole
// database, so that handling messages one by one would not help. A lock that is not free concerns
// only some messages with PostgreSQL, but the whole database with SQLite.
func (b *batcher) databaseFailed(err error) bool {
	return chain.Of(err).Kind == chain.Undecided && (b.dialect.SQLite() || !dialect.Contended(err))
}

func conflicted(err error) bool {
	state := dialect.State(err)
	return state == "40P01" || state == "40001" // deadlock, serialization failure
}

type batchRun struct {
	*batcher

	items   []*batchItem // items that have no result yet
	failing *batchItem   // item whose handler failed
	called  bool         // the handler was called in the last transaction
	after   []func()     // functions to call after the commit of the last transaction
}

func (r *batchRun) finish(err error) {
	for _, item := range r.items {
		failpoint.Hit("dedup/batch-settle")
		item.finish(err)
	}
	r.items = nil
}

// separate gives matching items transactions of their own. It reports whether any matched.
func (r *batchRun) separate(match func(item *batchItem) bool) bool {
	before := len(r.items)
	r.items = slices.DeleteFunc(r.items, func(item *batchItem) bool {
		matches := match(item)
		if matches {
			item.finish(errAlone)
		}
		return matches
	})
	return len(r.items) < before
}

// errEarly rolls back a transaction that has inserted the ids of messages that wait for earlier
// versions. The batch starts again without them.
var errEarly = errors.New("some messages wait for earlier versions")

// The result of each early message is the error of its handler.
func (r *batchRun) finishEarly() {
	r.items = slices.DeleteFunc(r.items, func(item *batchItem) bool {
		if item.early == nil {
			return false
		}
		item.finish(item.early)
		return true
	})
}

func (r *batchRun) restoreMessages() {
	for _, item := range r.items {
		parkedrows.Restore(item.msg, item.original)
	}
}

// runTx handles the remaining items in one transaction, and finishes duplicates.
func (r *batchRun) runTx() (err error) {
	r.failing, r.called, r.after = nil, false, nil
	ctx, end := r.context()
	defer end()
	tx, check, release, err := r.begin(ctx, true)
	if err != nil {
		return err
	}
	defer release()
	failpoint.Hit("dedup/batch-claim")
	if err := r.claim(ctx, tx); err != nil {
		return err
	}
	if len(r.items) == 0 {
		return nil
	}
	failpoint.Hit("dedup/batch-claimed")
	r.called = true
	produced, err := r.handle(ctx, tx, r)
	if err == nil {
		failpoint.Hit("dedup/batch-handled")
		err = r.store(tx, r.consumer, produced)
	}
	if err != nil {
		return r.failed(ctx, tx, release, err)
	}
	failpoint.Hit("dedup/batch-commit")
	if err := r.commit(ctx, tx, check); err != nil {
		return err
	}
	failpoint.Hit("dedup/batch-committed")
	r.callAfterCommit(r.after, r.consumer)
	return nil
}

// context returns a context without the trace of any single message. It ends when the context of
// any message ends: the other messages are then handled again without that one.
func (r *batchRun) context() (ctx context.Context, end func()) {
	ctx = trace.ContextWithSpanContext(r.items[0].ctx, trace.SpanContext{})
	if len(r.items) == 1 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stops := make([]func() bool, len(r.items))
	for i, item := range r.items {
		stops[i] = context.AfterFunc(item.ctx, cancel)
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

type batchFunc func(ctx context.Context, tx *sql.Tx, r *batchRun) ([]addressed, error)

// oneByOne calls h for one message after another. If one waits for an earlier version, it is called
// again after the others, which may have brought that version.
func oneByOne(h message.HandlerFunc) batchFunc {
	return func(_ context.Context, tx *sql.Tx, r *batchRun) ([]addressed, error) {
		var all []addressed
		for left := r.items; len(left) > 0; {
			var early []*batchItem
			for _, item := range left {
				r.failing, item.called = item, true
				produced, err := r.callOne(h, tx, item)
				if item.early = nil; err != nil && chain.Of(err).Early != nil {
					item.early = err
					early = append(early, item)
					continue
				}
				if err != nil {
					return nil, err
				}
				all = append(all, produced...)
			}
			r.failing = nil
			if len(early) == len(left) {
				return nil, errEarly
			}
			left = early
		}
		return all, nil
	}
}

func (r *batchRun) callOne(h message.HandlerFunc, tx *sql.Tx, item *batchItem) ([]addressed, error) {
	from := causeOf(item.msg)
	handling := parkedrows.WithTx(item.ctx, tx)
	handling.Mark = from.mark
	item.msg.SetContext(handling)
	var produced []*message.Message
	err := chain.Guarded(func() (err error) { produced, err = h(item.msg); return err })
	item.msg.SetContext(item.ctx)
	after := handling.End()
	if err != nil {
		return nil, err
	}
	r.after = append(r.after, after...)
	failpoint.Hit("dedup/batch-one-handled")
	for _, msg := range produced {
		from.mark(msg)
	}
	return r.address(item.ctx, r.consumer, produced)
}

func together(h BatchHandlerFunc) batchFunc {
	return func(ctx context.Context, tx *sql.Tx, r *batchRun) ([]addressed, error) {
		msgs := make([]*message.Message, len(r.items))
		for i, item := range r.items {
			msgs[i], item.called = item.msg, true
		}
		ctx, end := r.instruments.processes.HandleBatch(ctx, r.consumer, parkedrows.DeliveryOf(r.items[0].ctx).Topic, msgs)
		handling := parkedrows.WithTx(ctx, tx)
		var produced []*message.Message
		err := chain.Guarded(func() (err error) { produced, err = h(handling, tx, msgs); return err })
		end(err)
		r.after = handling.End()
		if err != nil {
			return nil, err
		}
		return r.address(ctx, r.consumer, produced)
	}
}
