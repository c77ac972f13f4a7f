package dialect

import (
	"context"
	"database/sql"
)

// InOrder makes PostgreSQL read rows in the order of an index until the end of the
// transaction. It takes conditions on one row for independent, so it would often expect
// few matching rows, read all of them, and sort them for a page of a hundred.
func (d Dialect) InOrder(ctx context.Context, tx *sql.Tx) error {
	if d.SQLite() {
		return nil
	}
	_, err := tx.ExecContext(ctx, `SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true)`)
	return err
}
