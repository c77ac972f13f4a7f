package service

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// Bank moves money. This is an effect outside the database, which a rollback does not
// undo. Therefore the bank accepts an idempotency key, as most payment providers do. It
// moves money once for each key, and later calls with the same key do nothing.
type Bank interface {
	Charge(ctx context.Context, idempotencyKey, orderID string, amount int64) error
	Refund(ctx context.Context, idempotencyKey, orderID string, amount int64) error
}

// bankTimeout limits the time of a call to the bank, because the transaction stays open
// during the call.
const bankTimeout = 5 * time.Second

// capturePayment charges the customer, writes the payment, and publishes two events. If
// the process dies after the charge and before the commit, the message is handled again,
// and the bank recognizes the repetition by the message id.
func (s *Service) capturePayment(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	order, err := decode[OrderPlaced](msg)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx,
		`INSERT INTO payments (order_id, message_id, customer, currency, amount) VALUES ($1, $2, $3, $4, $5)`,
		order.OrderID, msg.UUID, order.Customer, order.Currency, order.Total)
	if err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	captured, err := newMessage(TopicPaymentsCaptured, PaymentCaptured{
		OrderID: order.OrderID, Shop: order.Shop, Customer: order.Customer,
		Currency: order.Currency, Amount: order.Total,
	})
	if err != nil {
		return nil, err
	}
	receipt, err := intendMail("receipt", MailIntended{
		OrderID: order.OrderID, Shop: order.Shop, To: order.Customer,
		Subject: "We received " + money(order.Total, order.Currency),
	})
	if err != nil {
		return nil, err
	}
	// The call comes last, so that no failure above happens after the charge.
	calling, cancel := context.WithTimeout(ctx, bankTimeout)
	defer cancel()
	if err := s.bank.Charge(calling, msg.UUID, order.OrderID, order.Total); err != nil {
		return nil, fmt.Errorf("payments: %w", err)
	}
	return []*message.Message{once.To(TopicPaymentsCaptured, captured), once.To(TopicMailsIntended, receipt)}, nil
}
