package eventbus

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/parked"
)

// ErrNoTransaction reports that the context of an event has no transaction. No
// connection is taken instead, because the event would then be sent even if the
// business transaction rolls back.
var ErrNoTransaction = errors.New("eventbus: the context of the event has no transaction: " +
	"in a handler, pass the context that the handler got; elsewhere, pass eventbus.WithTx(ctx, tx)")

type contextKey struct{}

// WithTx returns ctx with a transaction for [Publisher]. Handlers of a consumer do
// not need it: their context has the transaction of the message.
func WithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, contextKey{}, tx)
}

// Publisher returns a publisher for cqrs.NewEventBusWithConfig and
// cqrs.NewCommandBusWithConfig. It stores each message in the outbox, in the
// transaction of the message's context: that of WithTx, or else that of the message
// which a handler is handling. Without a transaction it returns [ErrNoTransaction].
//
// A message that a handler sends gets the causation id and the tenant of the
// handled message, and its trace, like messages that the handler returns.
//
// outbox is outbox.Publisher, or the method Publisher of an *outbox.Outbox. Publisher
// panics if it is nil.
func Publisher(outbox func(tx *sql.Tx) message.Publisher) message.Publisher {
	if outbox == nil {
		panic("eventbus: Publisher: outbox is nil: pass outbox.Publisher")
	}
	return publisher{outbox}
}

type publisher struct {
	outbox func(tx *sql.Tx) message.Publisher
}

// Publish implements message.Publisher. A message is stored, or the error is
// returned and the messages after it are not stored.
func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		ctx := msg.Context()
		tx, ok := ctx.Value(contextKey{}).(*sql.Tx)
		if !ok {
			tx, ok = parked.TxOf(ctx)
			parked.Mark(ctx, msg)
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
