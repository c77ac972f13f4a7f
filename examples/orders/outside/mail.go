package outside

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/examples/orders/service"
)

// mailTable contains the mails. There is no unique constraint: a mail that was sent twice
// shows as two rows.
const mailTable = `
	CREATE TABLE IF NOT EXISTS mail_provider (
		reference text NOT NULL,
		order_id  text NOT NULL,
		recipient text NOT NULL,
		subject   text NOT NULL
	);
	CREATE INDEX IF NOT EXISTS mail_provider_reference ON mail_provider (reference)`

// MailProvider sends a mail at each call of Send, by writing to its table.
type MailProvider struct{ pool *sql.DB }

var _ service.Mailer = (*MailProvider)(nil)

// Find implements [service.Mailer].
func (p *MailProvider) Find(ctx context.Context, reference string) (sent bool, err error) {
	err = p.pool.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM mail_provider WHERE reference = $1)`, reference).Scan(&sent)
	if err != nil {
		return false, fmt.Errorf("mail: %w", err)
	}
	return sent, nil
}

// Send implements [service.Mailer].
func (p *MailProvider) Send(ctx context.Context, reference string, mail service.Mail) error {
	return exec(ctx, p.pool, "mail", `INSERT INTO mail_provider (reference, order_id, recipient, subject) VALUES ($1, $2, $3, $4)`,
		reference, mail.OrderID, mail.To, mail.Subject)
}
