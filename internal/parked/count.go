package parked

import (
	"context"
	"database/sql"
)

// CountMatching returns how many entries in these states match f, whatever
// f.Limit.
func (s *Store) CountMatching(ctx context.Context, f Filter, states ...string) (n int, err error) {
	where := s.where(f, states...)
	query := s.dialect.SQL(`SELECT COUNT(*) FROM {parked} WHERE ` + where.String())
	err = s.dialect.Read(ctx, s.db, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, query, where.args...).Scan(&n)
	})
	return n, err
}
