package parked

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
	store "github.com/watermill-once/once/internal/parked"
)

const (
	// page is the length of a page if Filter.Limit is 0.
	page = 100

	// windowRows is the maximum number of rows that one call reads.
	windowRows = 20_000

	// few is the maximum number of rows that a call finds with an index. If the index
	// contains more matching rows, the call reads the table in the order of the ids
	// instead. It then soon finds enough matching rows.
	few = 5_000
)

// window is the part of the table that one call reads.
type window struct {
	from string // FROM and WHERE clauses of a query for the matching rows, with the alias p
	args []any
	next int64 // last id of the window, or 0 if no rows follow
}

// window returns the part of the table in which a call looks for the rows that match f.
func (m *Messages) window(ctx context.Context, tx *sql.Tx, f Filter) (window, error) {
	var err error
	if f.IDs == nil {
		if f.IDs, err = m.indexed(ctx, tx, f); err != nil {
			return window{}, err
		}
	}
	c := &conditions{}
	var next int64
	if f.IDs == nil {
		n := 0
		err := tx.QueryRowContext(ctx, m.dialect.SQL(`SELECT COUNT(*), COALESCE(MAX(w.id), 0) FROM (
			SELECT id FROM {parked} WHERE id > $1 ORDER BY id LIMIT $2) AS w`), f.AfterID, windowRows).Scan(&n, &next)
		if err != nil {
			return window{}, err
		}
		if n < windowRows {
			next = 0
		} else {
			c.add(`p.id <= %s`, next)
		}
	}
	m.conditions(c, f)
	return window{`FROM {parked} AS p ` + c.where(), c.args, next}, nil
}

// indexed finds rows with an index, and returns their ids. These rows include all rows
// that match f. They may include other rows, because the index may cover only some of
// the conditions of f. It returns nil if no index helps, or if an index finds more than
// 5,000 rows (the constant few).
func (m *Messages) indexed(ctx context.Context, tx *sql.Tx, f Filter) (ids []int64, err error) {
	consumer, topic := store.Clean(f.Consumer, store.MaxName), store.Clean(f.Topic, store.MaxName)
	var queries []string
	args := []any{consumer}
	of := `consumer = $1`
	if f.Topic != "" {
		of, args = of+` AND topic = $2`, append(args, topic)
	}
	switch {
	case f.MessageID != "":
		queries, args = []string{`message_id <> '' AND message_id = $1`}, []any{store.Clean(f.MessageID, store.MaxName)}
	case f.State == Quarantined && f.Consumer != "":
		queries, args = []string{`consumer = $1 AND state || '' = 'quarantined'`}, []any{consumer}
	case f.State == Quarantined:
		queries, args = []string{`state = 'quarantined'`}, nil
	case f.State == Waiting && f.Consumer != "":
		queries = []string{of + ` AND state = 'waiting' AND crashes = 0`, of + ` AND state = 'waiting' AND crashes > 0`}
	case f.State == Held && f.Consumer != "":
		queries = []string{of + ` AND state = 'held'`}
	}
	if len(queries) > 0 {
		ids = []int64{}
	}
	for _, where := range queries {
		err := dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
			var id int64
			err := scan(&id)
			ids = append(ids, id)
			return err
		}, m.dialect.SQL(fmt.Sprintf(`SELECT id FROM {parked} WHERE %s LIMIT %d`, where, few+1)), args...)
		if err != nil || len(ids) > few {
			return nil, err
		}
	}
	return ids, nil
}

// rows calls the function scan for each matching row of the window. The parameter rest
// is the end of the query, after the conditions.
func (m *Messages) rows(
	ctx context.Context, tx *sql.Tx, w window, columns, rest string, scan func(scan func(dest ...any) error) error,
) error {
	return dialect.EachRow(ctx, tx, scan, m.dialect.SQL(`SELECT `+columns+` `+w.from+` `+rest), w.args...)
}

func limit(n int) string { return fmt.Sprintf(`ORDER BY p.id LIMIT %d`, n) }
