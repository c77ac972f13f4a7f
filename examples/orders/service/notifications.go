package service

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Mailer sends mail: an effect outside of the database, which no transaction
// of ours takes back.
type Mailer interface {
	// Send sends a mail once per idempotency key, however often it is called.
	Send(ctx context.Context, idempotencyKey string, mail Mail) error
}

// Mail is what customers get.
type Mail struct {
	OrderID string
	To      string
	Subject string
}

// notify tells the customer of the payment. If the process dies after sending
// and before the commit, or the commit fails, the message is handled again and
// Send called again: the mailer knows by the message id that it is the same.
func (s *Service) notify(ctx context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	captured, err := decode[PaymentCaptured](msg)
	if err != nil {
		return nil, err
	}
	// The transaction is open meanwhile: bound what others can take.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err = s.mailer.Send(ctx, msg.UUID, Mail{
		OrderID: captured.OrderID,
		To:      captured.Customer,
		Subject: fmt.Sprintf("We received %d.%02d %s", captured.Amount/100, captured.Amount%100, captured.Currency),
	})
	if err != nil {
		return nil, fmt.Errorf("notifications: %w", err)
	}
	return nil, nil
}
