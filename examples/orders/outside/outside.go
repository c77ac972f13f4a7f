// Package outside simulates the companies that the service payments uses: a bank, which
// accepts idempotency keys, and a mail provider, which does not. Their tables are not
// part of the service's transactions.
package outside

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/examples/orders/service"
)

// Tables is the SQL that creates the tables of the bank and of the mail provider, for
// PostgreSQL and SQLite.
const Tables = bankTable + ";" + mailTable

// Companies returns the bank and the mail provider. Their tables are in pool.
func Companies(pool *sql.DB) service.Outside {
	return service.Outside{Bank: &Bank{pool: pool}, Mailer: &MailProvider{pool: pool}}
}

func exec(ctx context.Context, pool *sql.DB, company, query string, args ...any) error {
	if _, err := pool.ExecContext(ctx, query, args...); err != nil {
		return fmt.Errorf("%s: %w", company, err)
	}
	return nil
}
