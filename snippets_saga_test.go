package once_test

import (
	"context"
	"database/sql"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// The code of docs/sagas.md, as in snippets_test.go.

func _(consumer *once.Consumer, router *message.Router, subscriber message.Subscriber,
	reserve func(ctx context.Context, tx *sql.Tx, order []byte) (ok bool, err error),
) {
	consumer.AddHandler(router, "inventory", "payments.captured", subscriber,
		func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			ok, err := reserve(ctx, tx, msg.Payload)
			if err != nil {
				return nil, err // try again
			}
			topic := "stock.reserved"
			if !ok {
				topic = "stock.refused" // refunds receives it
			}
			event := message.NewMessage(msg.UUID+"."+topic, msg.Payload)
			return []*message.Message{once.To(topic, event)}, nil
		})
}
