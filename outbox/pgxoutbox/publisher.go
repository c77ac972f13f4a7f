package pgxoutbox

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/watermill-once/once/outbox"
)

// Publisher returns a publisher that stores messages in tx. The messages are sent if,
// and only if, tx commits. If tx is nil, every Publish returns [ErrNoTransaction].
//
// Publish sends the statements immediately, in one round trip. It stores all messages
// of a call, or returns an error. After an outbox.ErrInvalid, tx is unchanged; after
// any other error, tx can only be rolled back. The context limits the statements: if
// ctx ends during a statement, pgx closes the connection. Messages whose context has no
// trace get the trace of ctx. Close does nothing.
func (o *Outbox) Publisher(ctx context.Context, tx pgx.Tx) message.Publisher {
	return publisher{outbox: o, ctx: ctx, tx: tx}
}

type publisher struct {
	outbox *Outbox
	ctx    context.Context
	tx     pgx.Tx
}

func (p publisher) Publish(topic string, msgs ...*message.Message) error {
	if p.tx == nil {
		return ErrNoTransaction
	}
	statements, done, err := p.outbox.statements.Statements(p.ctx, topic, msgs...)
	if err != nil {
		return err
	}
	return done(send(p.ctx, p.tx, statements))
}

func (publisher) Close() error { return nil }

// sender is a pgx.Tx or a *pgx.Conn.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

func send(ctx context.Context, to sender, statements []outbox.Statement) error {
	if len(statements) == 0 {
		return nil
	}
	batch := &pgx.Batch{}
	for _, s := range statements {
		batch.Queue(s.Query, s.Args...)
	}
	return to.SendBatch(ctx, batch).Close()
}
