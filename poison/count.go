package poison

import (
	"context"
	"database/sql"
	"fmt"
)

// Count returns how many messages in quarantine match. It ignores Filter.Limit
// and Filter.AfterGroup.
func (q *Quarantine) Count(ctx context.Context, f Filter) (int, error) {
	if err := f.validate(); err != nil {
		return 0, fmt.Errorf("poison: count: %w", err)
	}
	n, err := q.table.countMatching(ctx, f)
	if err != nil {
		return 0, fmt.Errorf("poison: count: %w", err)
	}
	return n, nil
}

func (t *table) countMatching(ctx context.Context, f Filter) (n int, err error) {
	err = t.dialect.Read(ctx, t.db, func(tx *sql.Tx) error {
		where, err := t.selected(ctx, tx, f)
		if err != nil {
			return err
		}
		query := t.dialect.SQL(`SELECT COUNT(*) FROM {parked} WHERE ` + where.String())
		return tx.QueryRowContext(ctx, query, where.Args...).Scan(&n)
	})
	return n, err
}
