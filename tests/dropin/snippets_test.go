package dropin

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/retry"
)

// The functions below are the code of docs/from-stock.md. They are not in the
// root package, because Watermill's middlewares need modules that the library
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
	quarantine *poison.Quarantine, retries *retry.Retries, inbox *dedup.Inbox, config cqrs.EventProcessorConfig,
) {
	// after
	router.AddMiddleware(middleware.Recoverer, quarantine.Middleware, retries.Middleware, inbox.Middleware)
	router.AddConsumerHandler("payments", "orders.placed", retries.Subscriber("payments", subscriber), handle)

	_ = func(msg *message.Message) error {
		tx, _ := dedup.TxFromContext(msg.Context()) // the inbox always sets it
		_, err := tx.ExecContext(msg.Context(), `INSERT INTO payments (order_id) VALUES ($1)`, string(msg.Payload))
		return err
	}

	config.SubscriberConstructor = func(params cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
		return retries.Subscriber(params.HandlerName, subscriber), nil
	}
}

type OrderPlaced struct{ ID string }

func _(router *message.Router, quarantine *poison.Quarantine, retries *retry.Retries, inbox *dedup.Inbox) error {
	marshaler := eventbus.Marshaler{CommandEventMarshaler: cqrs.JSONMarshaler{NewUUID: outbox.NewID, GenerateName: cqrs.StructName}}
	router.AddMiddleware(quarantine.Middleware, retries.Middleware, inbox.Middleware, eventbus.KnownEvents(marshaler, OrderPlaced{}))

	bus, err := cqrs.NewEventBusWithConfig(eventbus.Publisher(outbox.Publisher), cqrs.EventBusConfig{
		GeneratePublishTopic: func(params cqrs.GenerateEventPublishTopicParams) (string, error) { return params.EventName, nil },
		Marshaler:            marshaler,
	})
	_ = bus
	return err
}
