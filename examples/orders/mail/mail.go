// Package mail simulates a mail provider. It delivers one mail for each idempotency
// key. It has a separate table, which is not part of the service's transactions.
package mail

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/examples/orders/service"
)

// Tables is the SQL that creates the provider's table, for PostgreSQL and SQLite. A row
// is a mail that was delivered. The column tries counts the requests for this mail.
const Tables = `
	CREATE TABLE IF NOT EXISTS mail_provider (
		idempotency_key text    PRIMARY KEY,
		order_id        text    NOT NULL,
		recipient       text    NOT NULL,
		subject         text    NOT NULL,
		tries           integer NOT NULL
	)`

// Provider delivers mail by writing to its table.
type Provider struct {
	pool *sql.DB
}

// NewProvider returns a provider whose table is in pool.
func NewProvider(pool *sql.DB) *Provider { return &Provider{pool: pool} }

var _ service.Mailer = (*Provider)(nil)

// Send implements service.Mailer.
func (p *Provider) Send(ctx context.Context, idempotencyKey string, mail service.Mail) error {
	_, err := p.pool.ExecContext(ctx, `
		INSERT INTO mail_provider (idempotency_key, order_id, recipient, subject, tries) VALUES ($1, $2, $3, $4, 1)
		ON CONFLICT (idempotency_key) DO UPDATE SET tries = mail_provider.tries + 1`,
		idempotencyKey, mail.OrderID, mail.To, mail.Subject)
	if err != nil {
		return fmt.Errorf("mail: %w", err)
	}
	return nil
}
