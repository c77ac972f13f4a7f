package service

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
)

// The statuses of an order. An order is placed, then paid, and ends as shipped or as
// cancelled.
const (
	placed    = "placed"
	paid      = "paid"
	shipped   = "shipped"
	cancelled = "cancelled"
)

// versions maps the status of an order to the version of the order.
var versions = map[string]int64{placed: 1, paid: 2, shipped: 3, cancelled: 3}

// changed returns the event which says that an order has a new status. e
// is any event of this order.
func changed(e event, status string) (*message.Message, error) {
	shop, order := e.order()
	msg, err := newMessage(TopicOrdersChanged, OrderChanged{OrderID: order, Shop: shop, Version: versions[status], Status: status})
	if err != nil {
		return nil, err
	}
	msg.UUID += "." + status // each status is a different event
	outbox.SetAggregate(msg, "order", order, versions[status])
	return msg, nil
}

// event is an event that belongs to an order.
type event interface {
	order() (shop, id string)
}

// newMessage returns the message of an event. The message id consists of the order id
// and the topic, so the same event always gets the same id. The order id is also the
// ordering key, so the events of an order are sent in order.
func newMessage(topic string, e event) (*message.Message, error) {
	payload, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("service: encode %s: %w", topic, err)
	}
	shop, order := e.order()
	msg := message.NewMessage(order+"."+topic, payload)
	outbox.SetOrderingKey(msg, order)
	outbox.SetTenant(msg, shop)
	outbox.SetEventType(msg, topic)
	return msg, nil
}

// decode returns the event in a message. If the message is malformed, it returns a
// permanent error, because another attempt would fail, too. It ignores unknown fields,
// because a newer version of the publisher may send them.
func decode[E event](msg *message.Message) (E, error) {
	var e E
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return e, retry.Permanent(fmt.Errorf("service: decode %T: %w", e, err))
	}
	if _, order := e.order(); order == "" {
		return e, retry.Permanent(fmt.Errorf("service: decode %T: %w", e, errNoOrder))
	}
	return e, nil
}

var errNoOrder = errors.New("order_id is missing")
