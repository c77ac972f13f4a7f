package service

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once"
)

// refund compensates a payment whose order cannot be delivered. It reads the amount
// from this service's own table, not from the event, because a compensation must undo
// what was really done.
//
// A refund must succeed in the end, so no business rule may refuse it. If the refund
// fails, it is tried again. If its message ends in quarantine, the shop owes the
// customer money, and an operator must act.
func (s *Service) refund(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	refused, err := decode[StockRefused](msg)
	if err != nil {
		return nil, err
	}
	refunded := PaymentRefunded{OrderID: refused.OrderID, Shop: refused.Shop}
	var customer string
	// The payment exists, because the stock is refused only for a paid order. If the
	// payment were missing, the error would make retry try the message again later.
	err = tx.QueryRowContext(ctx, `SELECT customer, currency, amount FROM payments WHERE order_id = $1`, refused.OrderID).
		Scan(&customer, &refunded.Currency, &refunded.Amount)
	if err != nil {
		return nil, fmt.Errorf("refunds: read the payment of order %s: %w", refused.OrderID, err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO refunds (order_id, message_id, amount) VALUES ($1, $2, $3)`,
		refused.OrderID, msg.UUID, refunded.Amount)
	if err != nil {
		return nil, fmt.Errorf("refunds: %w", err)
	}
	event, err := newMessage(TopicPaymentsRefunded, refunded)
	if err != nil {
		return nil, err
	}
	apology, err := intendMail("refund", MailIntended{
		OrderID: refused.OrderID, Shop: refused.Shop, To: customer,
		Subject: "Sold out: " + refused.SKU + ". You get back " + money(refunded.Amount, refunded.Currency),
	})
	if err != nil {
		return nil, err
	}
	calling, cancel := context.WithTimeout(ctx, bankTimeout)
	defer cancel()
	if err := s.bank.Refund(calling, msg.UUID, refused.OrderID, refunded.Amount); err != nil {
		return nil, fmt.Errorf("refunds: %w", err)
	}
	return []*message.Message{once.To(TopicPaymentsRefunded, event), once.To(TopicMailsIntended, apology)}, nil
}
