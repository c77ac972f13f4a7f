package eventbus

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/usercode"
)

// ErrNoTransaction means that the context of an event has no transaction. On its own connection,
// the event would be sent even if the business transaction is rolled back.
var ErrNoTransaction = errors.New("eventbus: the context of the event has no transaction: " +
	"in a handler, pass the context that the handler got; elsewhere, pass eventbus.WithTx(ctx, tx)")

type contextKey struct{}

// WithTx returns ctx with a transaction for [Publisher]. Handlers of a consumer do not
// need WithTx: their context contains the transaction of the message.
func WithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, contextKey{}, tx)
}

// Publisher returns a publisher for cqrs.NewEventBusWithConfig and cqrs.NewCommandBusWithConfig. It
// stores each message in the outbox, in the transaction of WithTx, or else of the message that a
// handler is handling. Without one, Publish returns [ErrNoTransaction].
//
// In the transaction of a handled message, Publish also sets the causation id, the tenant and the
// trace, as for messages that the handler returns.
//
// outbox is the function outbox.Publisher, or the method Publisher of an *outbox.Outbox, and must
// not be nil.
func Publisher(outbox func(tx *sql.Tx) message.Publisher) message.Publisher {
	if outbox == nil {
		panic("eventbus: Publisher: outbox is nil: pass outbox.Publisher")
	}
	return publisher{outbox}
}

type publisher struct {
	outbox func(tx *sql.Tx) message.Publisher
}

// Publish implements message.Publisher. It stops at the first error.
func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	for n, msg := range msgs {
		if msg == nil {
			return usercode.WithMark(usercode.Permanent, fmt.Errorf("eventbus: message %d is nil", n))
		}
		ctx := msg.Context()
		tx, ok := ctx.Value(contextKey{}).(*sql.Tx)
		if !ok {
			tx, ok = parkedrows.TxOf(ctx)
			parkedrows.Mark(ctx, msg)
		}
		if !ok || tx == nil {
			return ErrNoTransaction
		}
		if err := p.outbox(tx).Publish(topic, msg); err != nil {
			return err
		}
	}
	return nil
}

// Close implements message.Publisher. It does nothing.
func (publisher) Close() error { return nil }
