package oncetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
)

// delivery is the delivery of a message, together with all its redeliveries. The delivery
// is stored in the context of each transaction of the message.
type delivery struct {
	fault *fault    // may be nil
	other *delivery // duplicate that is delivered at the same time, or nil

	committing chan struct{} // closed before the first commit, or when the delivery has ended
	announce   func()        // closes committing

	mu         sync.Mutex
	statements []string // statements of the last transaction
	handling   bool     // whether the handler is running
	ran        int      // number of statements of the handler, in all attempts
	injected   bool     // whether the fault was injected
	ignored    bool     // whether the fault was injected in the handler, and the handler returned no error
	ended      string   // how the handler ended its transaction: "commit", "rollback" or ""
	misuse     error    // mistake of the handler, or nil
}

func newDelivery(f *fault) *delivery {
	d := &delivery{fault: f, committing: make(chan struct{})}
	d.announce = sync.OnceFunc(func() { close(d.committing) })
	return d
}

type deliveryKey struct{}

func (d *delivery) context(ctx context.Context) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

func deliveryOf(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// handler returns a handler that calls the handler h and observes it.
func (d *delivery) handler(h once.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		tx, ok := dedup.TxFromContext(msg.Context())
		if !ok {
			return nil, errors.New("oncetest: the handler was called without a transaction")
		}
		injectedBefore := d.handlerBegins()
		err = errors.New("panic") // stays if h panics
		defer func() { d.handlerEnds(injectedBefore, err) }()
		return h(msg.Context(), tx, msg)
	}
}

// handlerBegins records that the handler begins. It reports whether the fault was
// injected before.
func (d *delivery) handlerBegins() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handling, d.ended = true, ""
	return d.injected
}

func (d *delivery) handlerEnds(injectedBefore bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handling = false
	if d.injected && !injectedBefore && err == nil {
		d.ignored = true
	}
	switch {
	case d.ended == "commit":
		d.misuse = errors.New("the handler commits its transaction itself: later writes, such as the messages that it returns, " +
			"are not in the same transaction")
	case d.ended != "" && err == nil:
		d.misuse = errors.New("the handler rolls back its transaction and returns no error: the message would never take effect")
	}
}

// begin records that a transaction begins. It forgets the statements of the previous
// transaction.
func (d *delivery) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statements = nil
}

// statement records a statement before its execution. It returns the fault to inject:
// 0, lost or statementFails.
func (d *delivery) statement(sql string) kind {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statements = append(d.statements, sql)
	if d.handling {
		d.ran++
		d.end(endOf(sql))
	}
	if d.fault == nil || d.injected || d.fault.statement != len(d.statements) {
		return 0
	}
	d.injected = true
	return d.fault.kind
}

// handlerStatements returns the number of statements that the handler has executed in
// its transactions.
func (d *delivery) handlerStatements() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ran
}

// undo forgets the latest statement, because the driver did not execute it. See
// conn.skipped.
func (d *delivery) undo() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statements = d.statements[:len(d.statements)-1]
}

// commit is called before a commit. It returns the fault to inject: 0, lost or
// lostAfterCommit.
func (d *delivery) commit() kind {
	d.waitForOther()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handling {
		d.end("commit")
	}
	if d.fault == nil || d.injected || d.fault.statement != 0 {
		return 0
	}
	d.injected = true
	return d.fault.kind
}

func (d *delivery) rollback() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handling {
		d.end("rollback")
	}
}

// end records how the handler has ended its transaction. Only the first call counts.
func (d *delivery) end(how string) {
	if d.ended == "" {
		d.ended = how
	}
}

// endOf returns how a statement ends the transaction: "commit", "rollback", or "" if
// the statement does not end it.
func endOf(sql string) string {
	words := strings.Fields(strings.ToLower(strings.TrimRight(strings.TrimSpace(sql), ";")))
	if len(words) == 0 {
		return ""
	}
	switch words[0] {
	case "commit", "end":
		return "commit"
	case "abort":
		return "rollback"
	case "rollback":
		if slices.Contains(words, "to") { // ROLLBACK TO a savepoint does not end the transaction
			return ""
		}
		return "rollback"
	}
	return ""
}

// waitForOther is called before a commit. It waits until the duplicate is about to
// commit, too, but only for a short time. Usually the duplicate cannot get so far,
// because it waits for this delivery: for its row in the inbox, for the only connection
// of the pool, or for SQLite's write lock.
func (d *delivery) waitForOther() {
	d.announce()
	if d.other == nil {
		return
	}
	timeout := time.NewTimer(100 * time.Millisecond)
	defer timeout.Stop()
	select {
	case <-d.other.committing:
	case <-timeout.C:
	}
}

func (d *delivery) faultInjected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.injected
}
