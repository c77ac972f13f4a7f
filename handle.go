package once

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/eventbus"
)

// Handle adds a handler of events of type E to router, see [Consumer.AddHandler]. It is for
// services without Watermill's cqrs component; for its processors, see [Consumer.Subscriber].
//
// ConsumerConfig.Marshaler reads the payload. A message with another payload, or with the name of
// another event, goes to the quarantine at once, because a retry would not help. E is a type such
// as OrderPlaced, or a pointer such as *pb.OrderPlaced.
//
// [MessageFromContext] returns the message. To publish events in the transaction, pass ctx to an
// event bus of eventbus.Publisher, or tx to outbox.Publisher. Handle panics if handle is nil, or if
// E is an interface.
func Handle[E any](
	c *Consumer, router *message.Router, consumer, topic string, sub message.Subscriber,
	handle func(ctx context.Context, tx *sql.Tx, event E) error,
) *message.Handler {
	mustHandle(consumer, handle != nil)
	target := reflect.TypeFor[E]()
	if target.Kind() == reflect.Interface {
		panic(fmt.Sprintf("once: the events of %q are %v, an interface: use the type of one event", consumer, target))
	}
	pointer := target.Kind() == reflect.Pointer
	if pointer {
		target = target.Elem()
	}
	h := inTx(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		read := reflect.New(target)
		if err := c.marshaler.Unmarshal(msg, read.Interface()); err != nil {
			return nil, err
		}
		if !pointer {
			read = read.Elem()
		}
		event, _ := reflect.TypeAssert[E](read)
		return nil, handle(context.WithValue(ctx, messageKey{}, msg), tx, event)
	})
	if _, anyName := c.marshaler.CommandEventMarshaler.(jsonOfAnyName); !anyName {
		h = eventbus.KnownEvents(c.marshaler, reflect.New(target).Interface())(h)
	}
	return c.add(router, consumer, topic, c.subscriber(consumer, sub), c.once.Middleware(c.inOrder(h)))
}

type messageKey struct{}

// MessageFromContext returns the message of an event that a handler of [Handle] got, or false in
// another context. It has the id and the metadata.
func MessageFromContext(ctx context.Context) (*message.Message, bool) {
	msg, ok := ctx.Value(messageKey{}).(*message.Message)
	return msg, ok
}

func marshalerOf(configured eventbus.CommandEventMarshaler) eventbus.Marshaler {
	switch m := configured.(type) {
	case nil:
		return eventbus.Marshaler{CommandEventMarshaler: jsonOfAnyName{}}
	case eventbus.Marshaler:
		return m
	default:
		return eventbus.Marshaler{CommandEventMarshaler: m}
	}
}

// jsonOfAnyName is the default of ConsumerConfig.Marshaler. It only unmarshals.
type jsonOfAnyName struct{ eventbus.CommandEventMarshaler }

func (jsonOfAnyName) Unmarshal(msg *message.Message, v any) error {
	return json.Unmarshal(msg.Payload, v)
}
