package outside

import (
	"context"
	"database/sql"

	"github.com/watermill-once/once/examples/orders/service"
)

// bankTable contains the movements of money. The column tries counts the requests for a
// movement: only the first request moves money.
const bankTable = `
	CREATE TABLE IF NOT EXISTS bank (
		idempotency_key text    PRIMARY KEY,
		order_id        text    NOT NULL,
		kind            text    NOT NULL, -- charge or refund
		amount          bigint  NOT NULL,
		tries           integer NOT NULL
	)`

// Bank moves money by writing to its table, once for each idempotency key.
type Bank struct{ pool *sql.DB }

var _ service.Bank = (*Bank)(nil)

// Charge implements [service.Bank].
func (b *Bank) Charge(ctx context.Context, idempotencyKey, orderID string, amount int64) error {
	return b.move(ctx, idempotencyKey, orderID, "charge", amount)
}

// Refund implements [service.Bank].
func (b *Bank) Refund(ctx context.Context, idempotencyKey, orderID string, amount int64) error {
	return b.move(ctx, idempotencyKey, orderID, "refund", amount)
}

func (b *Bank) move(ctx context.Context, key, order, kind string, amount int64) error {
	return exec(ctx, b.pool, "bank", `
		INSERT INTO bank (idempotency_key, order_id, kind, amount, tries) VALUES ($1, $2, $3, $4, 1)
		ON CONFLICT (idempotency_key) DO UPDATE SET tries = bank.tries + 1`,
		key, order, kind, amount)
}
