package dialect

import (
	"context"
	"database/sql"
)

// EachRow executes query in tx, and calls the function row for each row of the result.
// The parameter scan of the function row is the Scan method for the current row. EachRow
// stops at the first error and returns it.
func EachRow(
	ctx context.Context, tx *sql.Tx, row func(scan func(dest ...any) error) error, query string, args ...any,
) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Affected returns the number of rows that a statement changed.
func Affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
