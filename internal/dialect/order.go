package dialect

import (
	"context"
	"database/sql"
)

// InOrder makes PostgreSQL read rows in the order of an index until the end of the
// transaction. PostgreSQL assumes that conditions are independent of each other. So it
// often expects few matching rows, and would read and sort all of them for one page.
func (d Dialect) InOrder(ctx context.Context, tx *sql.Tx) error {
	if d.SQLite() {
		return nil
	}
	_, err := tx.ExecContext(ctx, `SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)`)
	return err
}
