package demo

import (
	"context"
	"fmt"

	"github.com/watermill-once/once/examples/orders/service"
)

// Between says how many events one service has sent to a consumer of the other service,
// and how many of these events the consumer has handled.
type Between struct {
	Topic    string `json:"topic"`
	From     string `json:"from"`
	Consumer string `json:"consumer"`
	To       string `json:"to"`
	Sent     int    `json:"sent"`
	Handled  int    `json:"handled"`
}

// publishers contains the service that publishes to each topic.
var publishers = map[string]string{
	service.TopicOrdersPlaced: service.Orders, service.TopicStockReserved: service.Orders,
	service.TopicStockRefused: service.Orders, service.TopicOrdersChanged: service.Orders,
	service.TopicPaymentsCaptured: service.Payments, service.TopicPaymentsRefunded: service.Payments,
	service.TopicMailsIntended: service.Payments,
}

// between compares the forwarder's sent log in one database with the inbox in the other
// database, for each consumer that receives events of the other service. In production,
// package reconcile does this for millions of messages.
func (a Audit) between(ctx context.Context) (all []Between, err error) {
	if len(a.Stores) == 1 {
		return nil, nil
	}
	for _, to := range service.Subscriptions() {
		b := Between{Topic: to.Topic, From: publishers[to.Topic], Consumer: to.Consumer, To: to.Service}
		if b.From == b.To {
			continue
		}
		from, receiver := a.of(b.From), a.of(b.To)
		sent, err := counts(ctx, from.DB,
			fmt.Sprintf(`SELECT message_id, COUNT(*) FROM %s WHERE topic = '%s' GROUP BY message_id`, from.Tables.Table("outbox_sent"), b.Topic))
		if err != nil {
			return nil, err
		}
		handled, err := counts(ctx, receiver.DB,
			fmt.Sprintf(`SELECT message_id, COUNT(*) FROM %s WHERE consumer = '%s' GROUP BY message_id`, receiver.Tables.Table("inbox"), b.Consumer))
		if err != nil {
			return nil, err
		}
		b.Sent = len(sent)
		for id := range sent {
			b.Handled += handled[id]
		}
		all = append(all, b)
	}
	return all, nil
}
