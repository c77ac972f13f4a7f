package service

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Mailer sends mail. It does not support idempotency keys: each call of Send sends a
// mail. But it remembers the reference of each mail, so the caller can ask Find whether a
// mail was sent.
type Mailer interface {
	// Find reports whether a mail with this reference was sent.
	Find(ctx context.Context, reference string) (sent bool, err error)

	Send(ctx context.Context, reference string, mail Mail) error
}

// Mail is a mail to a customer.
type Mail struct {
	OrderID string
	To      string
	Subject string
}

// intendMail returns a message that contains the intent to send a mail. If a handler
// returns this message, it is written into the outbox in the transaction of the
// handler's other effects. So the intent exists if and only if these effects exist. The
// parameter purpose distinguishes the mails about one order.
func intendMail(purpose string, mail MailIntended) (*message.Message, error) {
	msg, err := newMessage(TopicMailsIntended, mail)
	if err != nil {
		return nil, err
	}
	msg.UUID += "." + purpose
	return msg, nil
}

// notify carries out the intent to send a mail. If the process dies after Send and
// before the commit, the message is handled again. In the next attempt, Find reports
// that the mail was sent. Two attempts never run at the same time.
func (s *Service) notify(ctx context.Context, _ *sql.Tx, msg *message.Message) ([]*message.Message, error) {
	intent, err := decode[MailIntended](msg)
	if err != nil {
		return nil, err
	}
	// The transaction stays open while the mail is being sent, so the time is limited.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	sent, err := s.mailer.Find(ctx, msg.UUID)
	if err == nil && !sent {
		err = s.mailer.Send(ctx, msg.UUID, Mail{OrderID: intent.OrderID, To: intent.To, Subject: intent.Subject})
	}
	if err != nil {
		return nil, fmt.Errorf("notifications: %w", err)
	}
	return nil, nil
}
