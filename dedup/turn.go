package dedup

import (
	"context"
	"database/sql"
	"errors"
	"runtime/debug"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/disposition"
	"github.com/watermill-once/once/internal/failpoint"
	"github.com/watermill-once/once/internal/parked"
)

// redos is how often a batch is done again because the database gave way to
// other work.
const redos = 3

// handle settles every message of a batch.
func (l *line) handle(batch []*entry) {
	copies := &turn{entries: batch}
	defer copies.settle(errAlone) // what is left if a handler ends its goroutine
	for len(copies.entries) > 0 {
		batch, copies.entries = distinct(copies.entries)
		l.settle(batch)
	}
}

// distinct splits off the second copy of a message: it must see what becomes
// of the first.
func distinct(batch []*entry) (first, copies []*entry) {
	seen := make(map[string]bool, len(batch))
	for _, e := range batch {
		if slices.ContainsFunc(e.identities, func(id identity) bool { return seen[id.id] }) {
			copies = append(copies, e)
			continue
		}
		first = append(first, e)
		for _, id := range e.identities {
			seen[id.id] = true
		}
	}
	return first, copies
}

// settle is handle for messages that are different ones.
func (l *line) settle(batch []*entry) {
	t := &turn{line: l, entries: batch}
	defer t.settle(errAlone) // likewise
	for again, blamed := 0, false; len(t.entries) > 0; {
		size := len(t.entries)
		err := t.try()
		l.instruments.turn(size, err)
		if err == nil {
			t.settle(nil)
			return
		}
		failpoint.Hit("dedup/batch-undone")
		t.restore()
		switch {
		case t.drop(func(e *entry) bool { return e.ctx.Err() != nil && size > 1 }), errors.Is(err, errMixed):
		case errors.Is(err, errEarly):
			t.putOff()
		case gaveWay(err) && again < redos:
			again++
		// What one has committed are the claims of all: alone they would be known.
		case size == 1, errors.Is(err, errEnded), !t.called && l.away(err):
			t.settle(err)
		case t.suspect != nil && !blamed:
			blamed = true
			t.drop(func(e *entry) bool { return e == t.suspect })
		default: // several fail, or it cannot be told which
			t.settle(errAlone)
		}
	}
}

// away says of an error before the handler was called that it is about the
// database, and so the same for each message. A lock that could not be had is
// about one of them.
func (l *line) away(err error) bool {
	return disposition.Of(err).Kind == disposition.Undecided && (l.dialect.SQLite() || !dialect.Contended(err))
}

// gaveWay says that the transaction failed for the sake of another.
func gaveWay(err error) bool {
	state := dialect.State(err)
	return state == "40P01" || state == "40001" // deadlock, serialization failure
}

// turn is a batch in its transaction, or in one after another.
type turn struct {
	*line

	entries []*entry // that are not settled
	suspect *entry   // whose handler failed
	called  bool     // the handler, for any of them
}

// settle ends the turn.
func (t *turn) settle(err error) {
	for _, e := range t.entries {
		failpoint.Hit("dedup/batch-settle")
		e.settle(err)
	}
	t.entries = nil
}

// drop has messages handled alone, and says whether there were any.
func (t *turn) drop(which func(e *entry) bool) bool {
	before := len(t.entries)
	t.entries = slices.DeleteFunc(t.entries, func(e *entry) bool {
		drop := which(e)
		if drop {
			e.settle(errAlone)
		}
		return drop
	})
	return len(t.entries) < before
}

// errEarly says that some messages came before their turn, which was not seen
// until the others were done: they must go before these can be committed.
var errEarly = errors.New("some came before their turn")

// putOff settles the messages that came before their turn, each with its own
// error: it says what that message waits for.
func (t *turn) putOff() {
	t.entries = slices.DeleteFunc(t.entries, func(e *entry) bool {
		if e.early == nil {
			return false
		}
		e.settle(e.early)
		return true
	})
}

func (t *turn) restore() {
	for _, e := range t.entries {
		parked.Restore(e.msg, e.original)
	}
}

// try makes one transaction of what is not settled. It settles what was done
// before.
func (t *turn) try() (err error) {
	t.suspect, t.called = nil, false
	defer func() {
		if value := recover(); value != nil {
			err = &disposition.PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	ctx, end := t.context()
	defer end()
	tx, check, release, err := t.begin(ctx)
	if err != nil {
		return err
	}
	defer release()
	failpoint.Hit("dedup/batch-claim")
	if err := t.claim(ctx, tx); err != nil {
		return err
	}
	if len(t.entries) == 0 {
		return nil
	}
	failpoint.Hit("dedup/batch-claimed")
	t.called = true
	produced, err := t.work(ctx, tx, t)
	if err == nil {
		failpoint.Hit("dedup/batch-handled")
		err = t.store(tx, t.consumer, produced)
	}
	if err != nil {
		return t.failed(ctx, tx, release, err)
	}
	failpoint.Hit("dedup/batch-commit")
	if err := t.commit(ctx, tx, check, true); err != nil {
		return err
	}
	failpoint.Hit("dedup/batch-committed")
	return nil
}

// context has what all messages have in common, and ends when that of one of
// them does: the others are then done without it.
func (t *turn) context() (ctx context.Context, end func()) {
	ctx = trace.ContextWithSpanContext(t.entries[0].ctx, trace.SpanContext{})
	if len(t.entries) == 1 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stops := make([]func() bool, len(t.entries))
	for i, e := range t.entries {
		stops[i] = context.AfterFunc(e.ctx, cancel)
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}

// work handles the messages of a turn in tx.
type work func(ctx context.Context, tx *sql.Tx, t *turn) ([]addressed, error)

// each calls h for one message after another. One that came before its turn is
// called again after the others, which may be what it waits for.
func each(h message.HandlerFunc) work {
	return func(_ context.Context, tx *sql.Tx, t *turn) ([]addressed, error) {
		var all []addressed
		for left := t.entries; len(left) > 0; {
			var early []*entry
			for _, e := range left {
				t.suspect = e
				produced, err := t.one(h, tx, e)
				if e.early = nil; disposition.Of(err).Early != nil {
					e.early = err
					early = append(early, e)
					continue
				}
				if err != nil {
					return nil, err
				}
				all = append(all, produced...)
			}
			t.suspect = nil
			if len(early) == len(left) {
				return nil, errEarly
			}
			left = early
		}
		return all, nil
	}
}

// one calls h for a message, and returns what it produced with its address.
func (t *turn) one(h message.HandlerFunc, tx *sql.Tx, e *entry) ([]addressed, error) {
	from := causeOf(e.msg)
	e.msg.SetContext(parked.WithTx(e.ctx, tx))
	produced, err := disposition.Call(h, e.msg)
	e.msg.SetContext(e.ctx)
	if err != nil {
		return nil, err
	}
	failpoint.Hit("dedup/batch-one-handled")
	for _, msg := range produced {
		from.mark(msg)
	}
	return t.address(e.ctx, t.consumer, produced)
}

// together calls h for all messages.
func together(h BatchHandlerFunc) work {
	return func(ctx context.Context, tx *sql.Tx, t *turn) ([]addressed, error) {
		msgs := make([]*message.Message, len(t.entries))
		for i, e := range t.entries {
			msgs[i] = e.msg
		}
		produced, err := h(parked.WithTx(ctx, tx), tx, msgs)
		if err != nil {
			return nil, err
		}
		return t.address(ctx, t.consumer, produced)
	}
}
