package once_test

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/retry"
)

// The code of docs/effects-outside.md, as in snippets_test.go.

type outsideProvider interface {
	Charge(ctx context.Context, key string, order []byte) (receipt string, err error)
	Find(ctx context.Context, key string) (receipt string, found bool, err error)
	Send(ctx context.Context, key string, mail []byte) (receipt string, err error)
}

func _(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber, provider outsideProvider) {
	consumer.AddHandler(router, "payments", "orders.placed", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			receipt, err := provider.Charge(ctx, msg.UUID, msg.Payload)
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO payments (message_id, receipt) VALUES ($1, $2)`, msg.UUID, receipt)
			return nil, err
		})
}

func _(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber, provider outsideProvider) {
	consumer.AddHandler(router, "mailer", "mails.intended", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			receipt, found, err := provider.Find(ctx, msg.UUID) // a reference that was given to the provider
			if err == nil && !found {
				receipt, err = provider.Send(ctx, msg.UUID, msg.Payload)
			}
			if err != nil {
				return nil, err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO mails (message_id, receipt) VALUES ($1, $2)`, msg.UUID, receipt)
			return nil, err
		})
}

func _(db *sql.DB, consumer *once.Consumer, router *message.Router, subscriber message.Subscriber, provider outsideProvider) {
	consumer.AddHandler(router, "mailer", "mails.intended", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			marked, err := db.ExecContext(ctx, `INSERT INTO mails_begun (message_id) VALUES ($1) ON CONFLICT DO NOTHING`, msg.UUID)
			if err != nil {
				return nil, err
			}
			if first, err := marked.RowsAffected(); err != nil || first == 0 {
				return nil, retry.Permanent(errors.Join(errors.New("an earlier attempt may have sent this mail: look, then edit or discard"), err))
			}
			receipt, err := provider.Send(ctx, msg.UUID, msg.Payload)
			if err != nil {
				return nil, retry.Permanent(err)
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO mails (message_id, receipt) VALUES ($1, $2)`, msg.UUID, receipt)
			return nil, err
		})
}

func _(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber, cache interface{ Clear() }) {
	consumer.AddHandler(router, "prices", "prices.changed", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if _, err := tx.ExecContext(ctx, `UPDATE prices SET amount = $1`, string(msg.Payload)); err != nil {
				return nil, err
			}
			return nil, dedup.AfterCommit(ctx, cache.Clear)
		})
}
