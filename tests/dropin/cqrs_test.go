package dropin

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/eventbus"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/retry"
)

type orderPlaced struct{ ID string }

// wrap returns the subscriber of a handler, and names its events.
type wrap = func(handler string, sub message.Subscriber, events ...any) message.Subscriber

// ways are how the handlers of a processor get the chain.
var ways = map[string]func(b *bench, marshaler cqrs.CommandEventMarshaler) wrap{
	"Consumer": func(b *bench, marshaler cqrs.CommandEventMarshaler) wrap {
		consumer := b.consumer(once.ConsumerConfig{})
		return func(handler string, sub message.Subscriber, events ...any) message.Subscriber {
			return consumer.Subscriber(b.router, handler, sub, eventbus.KnownEvents(marshaler, events...))
		}
	},
	"middlewares": func(b *bench, marshaler cqrs.CommandEventMarshaler) wrap {
		b.router.AddMiddleware(b.quarantine.Middleware, b.retries.Middleware, b.inbox.Middleware,
			eventbus.KnownEvents(marshaler, orderPlaced{}))
		return func(handler string, sub message.Subscriber, _ ...any) message.Subscriber {
			return b.retries.Subscriber(handler, sub)
		}
	},
}

func (b *bench) consumer(config once.ConsumerConfig) *once.Consumer {
	b.Helper()
	config.Retry = retry.Config{
		Policy: retry.Policy{Immediate: 1, Delayed: 1, Base: 20 * time.Millisecond}, PollInterval: 10 * time.Millisecond,
	}
	c, err := once.NewConsumer(b.db, config)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// Handlers of the cqrs component's processors have the whole chain, with the single middlewares and
// with a Consumer. A handler finds its transaction in the context. A message that cannot be
// read, or has an unknown type, is quarantined at once.
func TestCQRS(t *testing.T) {
	t.Parallel()
	for name, open := range transports {
		for _, kind := range []string{"event", "event group", "command"} {
			for way, prepare := range ways {
				t.Run(name+"/"+kind+"/"+way, func(t *testing.T) {
					if (kind != "event" || name != "amqp") && (way != "Consumer" || name != "gochannel") {
						kit.Long(t)
					}
					t.Parallel()
					b := newBench(t, name)
					to := open(t, b.db)
					marshaler := eventbus.Marshaler{CommandEventMarshaler: cqrs.JSONMarshaler{}}
					wrapped := prepare(b, marshaler)
					var h handler
					handle := func(ctx context.Context, event *orderPlaced) error { return h.do(ctx, event.ID) }
					var err error
					switch kind {
					case "event":
						err = b.events(to, marshaler, wrapped, cqrs.NewEventHandler(consumer, handle))
					case "event group":
						err = b.eventGroup(to, marshaler, wrapped, cqrs.NewGroupEventHandler(writeFirst), cqrs.NewGroupEventHandler(handle))
					default:
						err = b.commands(to, marshaler, wrapped, cqrs.NewCommandHandler(consumer, handle))
					}
					if err != nil {
						t.Fatal(err)
					}
					b.start()
					b.publishEvents(to, marshaler, newOrder, "fine", "fails", "hopeless", "fine", "broken", "unknown")
					b.reaches(2, `effects WHERE how = 'once'`)
					b.reaches(1, `once_parked WHERE state = 'quarantined' AND message_id = 'hopeless' AND reason = 'exhausted'`)
					b.reaches(2, `once_parked WHERE state = 'quarantined' AND message_id IN ('broken', 'unknown')
						AND reason = 'permanent' AND attempts = 1`)
					b.reaches(2, `once_inbox WHERE consumer = 'payments'`)
					if kind == "event group" {
						b.reaches(2, `effects WHERE how = 'first'`)
					}
				})
			}
		}
	}
}

// publishEvents publishes events with these ids. The payload of "broken" is invalid, and the name of
// "unknown" is that of another event.
func (b *bench) publishEvents(to transport, marshaler cqrs.CommandEventMarshaler, event func(id string) any, ids ...string) {
	b.Helper()
	for _, id := range ids {
		msg, err := marshaler.Marshal(event(id))
		if err != nil {
			b.Fatal(err)
		}
		msg.UUID = id
		switch id {
		case "broken":
			msg.Payload = []byte(`"broken"`) // a table of watermill-sql takes only JSON
		case "unknown":
			msg.Metadata.Set("name", "orderLost")
		}
		if err := to.Publish(to.topic, msg); err != nil {
			b.Fatal(err)
		}
	}
}

func (b *bench) events(to transport, marshaler cqrs.CommandEventMarshaler, wrapped wrap, h cqrs.EventHandler) error {
	processor, err := cqrs.NewEventProcessorWithConfig(b.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return to.topic, nil },
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return wrapped(p.HandlerName, to.subscriber(), orderPlaced{}), nil
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
func (b *bench) eventGroup(to transport, marshaler cqrs.CommandEventMarshaler, wrapped wrap, handlers ...cqrs.GroupEventHandler) error {
	processor, err := cqrs.NewEventGroupProcessorWithConfig(b.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return to.topic, nil },
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return wrapped(p.EventGroupName, to.subscriber(), orderPlaced{}), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return processor.AddHandlersGroup(consumer, handlers...)
}

func (b *bench) commands(to transport, marshaler cqrs.CommandEventMarshaler, wrapped wrap, h cqrs.CommandHandler) error {
	processor, err := cqrs.NewCommandProcessorWithConfig(b.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return to.topic, nil },
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return wrapped(p.HandlerName, to.subscriber(), orderPlaced{}), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	return processor.AddHandlers(h)
}
