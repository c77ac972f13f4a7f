package dropin

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/test/kit"
)

type orderPlaced struct{ ID string }

// The middlewares work with the processors of the cqrs component. The subscriber of each handler is
// wrapped, and the handler finds its transaction in the context.
func TestCQRS(t *testing.T) {
	t.Parallel()
	for name, open := range transports {
		for _, kind := range []string{"event", "event group", "command"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				if kind != "event" || name != "amqp" {
					kit.Long(t)
				}
				t.Parallel()
				b := newBench(t, name)
				to := open(t, b.db)
				marshaler := cqrs.JSONMarshaler{}
				b.router.AddMiddleware(b.quarantine.Middleware, b.retries.Middleware, b.inbox.Middleware)
				var h handler
				handle := func(ctx context.Context, event *orderPlaced) error { return h.do(ctx, event.ID) }
				var err error
				switch kind {
				case "event":
					err = b.events(to, marshaler, cqrs.NewEventHandler(consumer, handle))
				case "event group":
					err = b.eventGroup(to, marshaler, cqrs.NewGroupEventHandler(writeFirst), cqrs.NewGroupEventHandler(handle))
				default:
					err = b.commands(to, marshaler, cqrs.NewCommandHandler(consumer, handle))
				}
				kit.OK(t, err)
				b.start()
				for _, id := range []string{"fine", "fails", "hopeless", "fine"} {
					msg, err := marshaler.Marshal(orderPlaced{ID: id})
					kit.OK(t, err)
					msg.UUID = id
					kit.OK(t, to.Publish(to.topic, msg))
				}
				b.reaches(2, `effects WHERE how = 'once'`)
				b.reaches(1, `once_parked WHERE state = 'quarantined' AND message_id = 'hopeless'`)
				b.reaches(2, `once_inbox WHERE consumer = 'payments'`)
				if kind == "event group" {
					b.reaches(2, `effects WHERE how = 'first'`)
				}
			})
		}
	}
}

func (b *bench) events(to transport, marshaler cqrs.CommandEventMarshaler, h cqrs.EventHandler) error {
	processor, err := cqrs.NewEventProcessorWithConfig(b.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return to.topic, nil },
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return b.retries.Subscriber(p.HandlerName, to.subscriber()), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return processor.AddHandlers(h)
}

// writeFirst is the first handler of a group. Its effect is committed only if the handlers after it
// succeed.
func writeFirst(ctx context.Context, event *orderPlaced) error {
	tx, _ := dedup.TxFromContext(ctx)
	_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES ($1, 'first')`, event.ID)
	return err
}

// eventGroup adds a group of handlers that share a name and a transaction.
func (b *bench) eventGroup(to transport, marshaler cqrs.CommandEventMarshaler, handlers ...cqrs.GroupEventHandler) error {
	processor, err := cqrs.NewEventGroupProcessorWithConfig(b.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return to.topic, nil },
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return b.retries.Subscriber(p.EventGroupName, to.subscriber()), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return processor.AddHandlersGroup(consumer, handlers...)
}

func (b *bench) commands(to transport, marshaler cqrs.CommandEventMarshaler, h cqrs.CommandHandler) error {
	processor, err := cqrs.NewCommandProcessorWithConfig(b.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return to.topic, nil },
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return b.retries.Subscriber(p.HandlerName, to.subscriber()), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return processor.AddHandlers(h)
}
