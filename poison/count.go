package poison

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/watermill-once/once/internal/operate"
)

// Count counts the messages in quarantine that match, at most 50,000 in one call. If
// the Filter has several conditions, Count looks at no more than 10,000 of the entries
// that match the rarest condition. If Filter.Limit is set, Count counts no more entries
// than this limit. Count.Next says where the next call continues. Count ignores
// Filter.AfterGroup.
func (q *Quarantine) Count(ctx context.Context, f Filter) (Count, error) {
	if err := f.validate(); err != nil {
		return Count{}, fmt.Errorf("poison: count: %w", err)
	}
	n, err := q.table.countPart(ctx, f)
	if err != nil {
		return Count{}, fmt.Errorf("poison: count: %w", err)
	}
	return n, nil
}

func (t *table) countPart(ctx context.Context, f Filter) (n Count, err error) {
	most := min(operate.CountRows, cmp.Or(f.Limit, operate.CountRows))
	err = t.dialect.Look(ctx, t.db, func(tx *sql.Tx) error {
		w, err := t.window(ctx, tx, f, false)
		if err != nil {
			return err
		}
		query := `SELECT COUNT(*), COALESCE(MAX(w.id), 0) FROM (
			SELECT id FROM ` + w.From() + ` ORDER BY id LIMIT ` + strconv.Itoa(most) + `) AS w`
		err = tx.QueryRowContext(ctx, t.dialect.SQL(query), w.Args...).Scan(&n.N, &n.Next)
		if n.N < most {
			n.Next = w.Next
		}
		return err
	})
	return n, err
}
