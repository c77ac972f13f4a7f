package service

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Mailer sends mail. A mail is an effect outside the database, so a rollback does not
// undo it.
type Mailer interface {
	// Send sends one mail for each idempotency key. Later calls with the same key do
	// nothing.
	Send(ctx context.Context, idempotencyKey string, mail Mail) error
}

// Mail is a mail to a customer.
type Mail struct {
	OrderID string
	To      string
	Subject string
}

// notify sends the customer a mail about the payment. If the process dies after Send
// and before the commit, or if the commit fails, the message is handled again, and Send
// is called again. The mailer recognizes the repetition by the message id.
func (s *Service) notify(ctx context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	captured, err := decode[PaymentCaptured](msg)
	if err != nil {
		return nil, err
	}
	// The transaction stays open while the mail is being sent, so the time is limited.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err = s.mailer.Send(ctx, msg.UUID, Mail{
		OrderID: captured.OrderID,
		To:      captured.Customer,
		Subject: "We received " + money(captured.Amount, captured.Currency),
	})
	if err != nil {
		return nil, fmt.Errorf("notifications: %w", err)
	}
	return nil, nil
}
