package dialect

import (
	"context"
	"database/sql"
)

// InOrder makes PostgreSQL read rows in the order of an index. This setting applies
// until the end of the transaction. PostgreSQL assumes that the conditions of a query
// are independent of each other, and so often expects too few matching rows. It would
// then read and sort all matching rows to return one page.
//
// InOrder also makes PostgreSQL choose the index with the fewest rows. Some indexes
// begin with a column such as the tenant and end with the id. PostgreSQL does not know
// that such an index lists the rows of one tenant in the order in which they are stored
// in the table. So it expects to read many pages in a random order, and would rather
// read the rows of all tenants through the primary key.
func (d Dialect) InOrder(ctx context.Context, tx *sql.Tx) error {
	if d.SQLite() {
		return nil
	}
	_, err := tx.ExecContext(ctx, `SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true),
		set_config('random_page_cost', '0', true), set_config('seq_page_cost', '0', true)`)
	return err
}

// Look is like [Dialect.Read], for queries whose result a person is waiting for.
// PostgreSQL does not compile these queries. Compiling (JIT) takes up to a second, which
// is longer than the query itself. PostgreSQL would compile them, because its estimate of
// their cost is too high: it includes rows that the queries never read because of their
// LIMIT clauses.
func (d Dialect) Look(ctx context.Context, db *sql.DB, work func(tx *sql.Tx) error) error {
	return d.Read(ctx, db, func(tx *sql.Tx) error {
		if !d.SQLite() {
			if _, err := tx.ExecContext(ctx, `SET LOCAL jit = off`); err != nil {
				return err
			}
		}
		return work(tx)
	})
}
