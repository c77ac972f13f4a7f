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

// delivery is a message on its way, with all its redeliveries. Its transactions
// find it in the context that they were begun with.
type delivery struct {
	fault *fault    // nil for none
	other *delivery // a copy that is delivered at the same time, or nil

	arrived chan struct{} // closed when it is about to commit, or done
	arrive  func()

	mu         sync.Mutex
	statements []string // of the transaction that was begun last
	handling   bool     // the handler has the transaction
	ran        int      // statements of the handler in it, in all tries
	struck     bool     // the fault has come
	ignored    bool     // it came in the handler, which returned no error
	ended      string   // how the handler ended its transaction
	misuse     error    // what a handler must not do
}

func newDelivery(f *fault) *delivery {
	d := &delivery{fault: f, arrived: make(chan struct{})}
	d.arrive = sync.OnceFunc(func() { close(d.arrived) })
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

// handler is h under observation.
func (d *delivery) handler(h once.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		tx, ok := dedup.TxFromContext(msg.Context())
		if !ok {
			return nil, errors.New("oncetest: there is no transaction")
		}
		before := d.enter()
		err = errors.New("panic") // unless h returns
		defer func() { d.leave(before, err) }()
		return h(msg.Context(), tx, msg)
	}
}

// enter says that the handler begins, and returns whether the fault has come.
func (d *delivery) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handling, d.ended = true, ""
	return d.struck
}

func (d *delivery) leave(struckBefore bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handling = false
	if d.struck && !struckBefore && err == nil {
		d.ignored = true
	}
	switch {
	case d.ended == "commit":
		d.misuse = errors.New("the handler commits its transaction itself: what comes after, such as the messages that it produces, " +
			"is not one with what it wrote")
	case d.ended != "" && err == nil:
		d.misuse = errors.New("the handler rolls back its transaction and returns no error: the message would never be done")
	}
}

// begin starts the count of statements.
func (d *delivery) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statements = nil
}

// statement counts one that is about to be carried out, and says what is to
// become of it: 0, lost or refused.
func (d *delivery) statement(sql string) kind {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statements = append(d.statements, sql)
	if d.handling {
		d.ran++
		d.end(endOf(sql))
	}
	if d.fault == nil || d.struck || d.fault.statement != len(d.statements) {
		return 0
	}
	d.struck = true
	return d.fault.kind
}

// handlerRan returns how many statements the handler has run in its transactions.
func (d *delivery) handlerRan() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ran
}

// notCarriedOut takes a statement back that the driver wants in another way.
func (d *delivery) notCarriedOut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.statements = d.statements[:len(d.statements)-1]
}

// commit says what is to become of a commit: 0, lost or answerLost.
func (d *delivery) commit() kind {
	d.meet()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handling {
		d.end("commit")
	}
	if d.fault == nil || d.struck || d.fault.statement != 0 {
		return 0
	}
	d.struck = true
	return d.fault.kind
}

func (d *delivery) rollback() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handling {
		d.end("rollback")
	}
}

// end remembers the first way in which the handler ended its transaction: after
// it, nothing in it counts.
func (d *delivery) end(how string) {
	if d.ended == "" {
		d.ended = how
	}
}

// endOf says how a statement ends the transaction, if it does.
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
		if slices.Contains(words, "to") { // a savepoint
			return ""
		}
		return "rollback"
	}
	return ""
}

// meet waits, before a commit, until the other copy is about to commit too. As
// a rule that is held up by this one, at the inbox, in a pool of one connection
// or by SQLite: so it does not wait for long.
func (d *delivery) meet() {
	d.arrive()
	if d.other == nil {
		return
	}
	enough := time.NewTimer(100 * time.Millisecond)
	defer enough.Stop()
	select {
	case <-d.other.arrived:
	case <-enough.C:
	}
}

func (d *delivery) hasStruck() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.struck
}
