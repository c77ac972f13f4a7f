package service

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/retry"
)

// The topics that the service publishes to.
const (
	TopicOrdersPlaced     = "orders.placed"
	TopicPaymentsCaptured = "payments.captured"
	TopicOrdersChanged    = "orders.changed"
)

// OrderPlaced is the event of [TopicOrdersPlaced].
type OrderPlaced struct {
	OrderID  string `json:"order_id"`
	Shop     string `json:"shop"`
	Customer string `json:"customer"`
	Currency string `json:"currency"`
	Total    int64  `json:"total"`
	Lines    []Line `json:"lines"`
}

// PaymentCaptured is the event of [TopicPaymentsCaptured].
type PaymentCaptured struct {
	OrderID  string `json:"order_id"`
	Shop     string `json:"shop"`
	Customer string `json:"customer"`
	Currency string `json:"currency"`
	Amount   int64  `json:"amount"`
}

// OrderChanged is the event of [TopicOrdersChanged]: the order has a new status.
type OrderChanged struct {
	OrderID string `json:"order_id"`
	Shop    string `json:"shop"`
	Version int64  `json:"version"`
	Status  string `json:"status"`
}

// Versions of an order. Each version stands for a status.
const (
	placed = iota + 1
	paid
	shipped
)

var statuses = map[int64]string{placed: "placed", paid: "paid", shipped: "shipped"}

// changed returns an event which says that an order has reached a version. e is any
// event of this order.
func changed(e event, version int64) (*message.Message, error) {
	shop, order := e.order()
	msg, err := newMessage(TopicOrdersChanged, version,
		OrderChanged{OrderID: order, Shop: shop, Version: version, Status: statuses[version]})
	if err != nil {
		return nil, err
	}
	msg.UUID += "." + statuses[version] // each version is a different event
	return msg, nil
}

// event is an event that belongs to an order.
type event interface {
	order() (shop, id string)
}

func (e OrderPlaced) order() (shop, id string)     { return e.Shop, e.OrderID }
func (e PaymentCaptured) order() (shop, id string) { return e.Shop, e.OrderID }
func (e OrderChanged) order() (shop, id string)    { return e.Shop, e.OrderID }

// newMessage returns the message of an event. The message id consists of the order id
// and kind, so the same event always gets the same id. The order id is also the
// ordering key, so the events of an order are sent in order.
func newMessage(kind string, version int64, e event) (*message.Message, error) {
	payload, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("service: encode %s: %w", kind, err)
	}
	shop, order := e.order()
	msg := message.NewMessage(order+"."+kind, payload)
	outbox.SetOrderingKey(msg, order)
	outbox.SetTenant(msg, shop)
	outbox.SetAggregate(msg, "order", order, version)
	outbox.SetEventType(msg, kind)
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
