package oncetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
)

// delivery is a message with all its redeliveries, in the context of each of its transactions.
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

// handlerBegins reports whether the fault was injected before.
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

// begin forgets the statements of the previous transaction.
func (d *delivery) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statements = nil
}

// statement returns the fault to inject before the statement: 0, lost or statementFails.
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

func (d *delivery) handlerStatements() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ran
}

// undo is for conn.skipped.
func (d *delivery) undo() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statements = d.statements[:len(d.statements)-1]
}

// commit returns the fault to inject: 0, lost or lostAfterCommit.
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

// Only the first end counts.
func (d *delivery) end(how string) {
	if d.ended == "" {
		d.ended = how
	}
}

// endOf returns "commit", "rollback", or "" if the statement does not end the transaction.
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

// waitForOther waits before a commit until the duplicate is about to commit, too, but only for a
// short time: usually it waits for this delivery, for its row in the inbox, the only connection of
// the pool, or SQLite's write lock.
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

type kind int

const (
	// lost loses the connection before a statement or the commit, and the database rolls back.
	lost kind = iota + 1

	// lostAfterCommit loses the connection before the reply to the commit arrives.
	lostAfterCommit

	// After statementFails, the connection stays open.
	statementFails
)

type fault struct {
	kind    kind
	message int // index of the message

	// statement is a number from 1, or 0 for the commit.
	statement int

	of  int    // number of statements in the transaction
	sql string // text of the statement
	id  string // id of the message
}

func (f fault) name() string {
	switch {
	case f.kind == statementFails:
		return fmt.Sprintf("statement %d of message %d fails", f.statement, f.message+1)
	case f.kind == lostAfterCommit:
		return fmt.Sprintf("lost after the commit of message %d", f.message+1)
	case f.statement == 0:
		return fmt.Sprintf("lost before the commit of message %d", f.message+1)
	default:
		return fmt.Sprintf("lost at statement %d of message %d", f.statement, f.message+1)
	}
}

func (f fault) String() string {
	switch {
	case f.kind == statementFails:
		return fmt.Sprintf("statement %d of %d of message %q failed (%s)", f.statement, f.of, f.id, brief(f.sql))
	case f.kind == lostAfterCommit:
		return fmt.Sprintf("connection lost after the commit of message %q, before the reply, then delivered again", f.id)
	case f.statement == 0:
		return fmt.Sprintf("connection lost before the commit of message %q took effect, then delivered again", f.id)
	default:
		return fmt.Sprintf("connection lost at statement %d of %d of message %q (%s), then delivered again",
			f.statement, f.of, f.id, brief(f.sql))
	}
}

func faults(index int, id string, statements []string) []fault {
	var all []fault
	add := func(k kind, statement int, sql string) {
		all = append(all, fault{kind: k, message: index, statement: statement, of: len(statements), sql: sql, id: id})
	}
	for i, sql := range statements {
		add(lost, i+1, sql)
		add(statementFails, i+1, sql)
	}
	add(lost, 0, "")
	add(lostAfterCommit, 0, "")
	return all
}

func brief(sql string) string {
	return shorten(strings.Join(strings.Fields(sql), " "), 60)
}

func shorten(text string, limit int) string {
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + "..."
	}
	return text
}
