package dropin

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// The functions below are the code of docs/from-stock.md. They are not in docs,
// because Watermill's middlewares need modules that the library
// does not need.

func _(router *message.Router, publisher message.Publisher, subscriber message.Subscriber, handle message.NoPublishHandlerFunc) error {
	// before
	poisonQueue, err := middleware.PoisonQueue(publisher, "poison")
	if err != nil {
		return err
	}
	router.AddMiddleware(
		middleware.Recoverer,
		poisonQueue,
		middleware.Retry{MaxRetries: 5, InitialInterval: time.Second, Multiplier: 5, MaxInterval: time.Hour}.Middleware,
		(&middleware.Deduplicator{}).Middleware,
	)
	router.AddConsumerHandler("payments", "orders.placed", subscriber, handle)
	return nil
}

func _(
	router *message.Router, subscriber message.Subscriber, handle message.NoPublishHandlerFunc,
	quarantine *poison.Store, retries *retry.Retries, inbox *dedup.Inbox,
) {
	// after
	router.AddMiddleware(middleware.Recoverer, quarantine.Middleware, retries.Middleware, inbox.Middleware)
	router.AddConsumerHandler("payments", "orders.placed", retries.Subscriber("payments", subscriber), handle)

	_ = func(msg *message.Message) error {
		tx, _ := dedup.TxFromContext(msg.Context()) // the inbox always sets it
		_, err := tx.ExecContext(msg.Context(), `INSERT INTO payments (order_id) VALUES ($1)`, string(msg.Payload))
		return err
	}
}
