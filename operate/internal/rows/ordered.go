package rows

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/operate"
)

// Ordered is a table that is read in the order of IDs, because no index finds most conditions.
type Ordered struct {
	DB
	Table

	Name, Alias, Key string // name of the table as a placeholder of dialect.SQL, its alias, and its primary key

	// Next returns the last ID of the window after an ID, or 0 if fewer rows follow.
	Next func(ctx context.Context, tx *sql.Tx, after int64) (int64, error)

	// Indexed returns the ends of queries that find all rows that match f with an index, and
	// possibly others, or nil.
	Indexed func(f operate.Filter) (where []string, args []any)
}

// Window returns the part of the table that one call reads.
func (o *Ordered) Window(ctx context.Context, tx *sql.Tx, f operate.Filter) (w Window, err error) {
	if f.IDs == nil {
		if f.IDs, err = o.few(ctx, tx, f); err != nil {
			return w, err
		}
	}
	c := &Conditions{}
	if f.IDs == nil {
		if w.Next, err = o.Next(ctx, tx, f.AfterID); err != nil {
			return w, err
		}
		if w.Next > 0 {
			c.Add(o.ID+` <= %s`, w.Next)
		}
	}
	c.Filter(o.Dialect, o.Table, f)
	w.from, w.Args = o.Name+` AS `+o.Alias+` `+c.Where(), c.Args
	return w, nil
}

// few returns nil if an index finds more than 5,000 rows: in the order of the IDs, the call then
// soon finds enough.
func (o *Ordered) few(ctx context.Context, tx *sql.Tx, f operate.Filter) (ids []int64, err error) {
	queries, args := o.Indexed(f)
	for _, where := range queries {
		some, err := IDs(ctx, tx, o.SQL(fmt.Sprintf(`SELECT %s FROM %s WHERE %s LIMIT %d`, o.Key, o.Name, where, fewRows+1)), args...)
		if ids = append(ids, some...); err != nil || len(ids) > fewRows {
			return nil, err
		}
	}
	if queries != nil && ids == nil {
		ids = []int64{}
	}
	return ids, nil
}

// Each calls scan for each row of the window. rest is the end of the query, after the conditions.
func (o *Ordered) Each(
	ctx context.Context, tx *sql.Tx, w Window, columns, rest string, scan func(scan func(dest ...any) error) error,
) error {
	return dialect.EachRow(ctx, tx, scan, o.SQL(`SELECT `+columns+` FROM `+w.From()+` `+rest), w.Args...)
}

// Count counts the rows of a window. It ignores Filter.Limit.
func (o *Ordered) Count(ctx context.Context, f operate.Filter) (n operate.Count, err error) {
	if err := o.Check(f); err != nil {
		return operate.Count{}, err
	}
	err = o.Look(ctx, func(tx *sql.Tx) error {
		w, err := o.Window(ctx, tx, f)
		if err != nil {
			return err
		}
		n.Next = w.Next
		return o.Each(ctx, tx, w, `COUNT(*)`, ``, func(scan func(dest ...any) error) error { return scan(&n.N) })
	})
	return n, err
}

// EachBatch calls change with up to size IDs of rows that match f and existed when it began. only
// is a further condition, or "". The result adds up all batches.
func (o *Ordered) EachBatch(
	ctx context.Context, f operate.Filter, plan operate.Plan, only string, size int,
	change func(ids []int64) (operate.Report, error),
) (report operate.Report, err error) {
	var last int64
	err = o.Look(ctx, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, o.SQL(`SELECT COALESCE(MAX(`+o.Key+`), 0) FROM `+o.Name)).Scan(&last)
	})
	if err != nil {
		return report, err
	}
	err = EachBatch(ctx, f, plan, size, last, &report, func(f operate.Filter, size int) (int64, operate.Report, error) {
		ids, next, err := o.matching(ctx, f, only, size, last)
		if err != nil || len(ids) == 0 {
			return next, operate.Report{}, err
		}
		batch, err := change(ids)
		return next, batch, err
	})
	return report, err
}

// matching returns the next IDs, and f.AfterID for the following call.
func (o *Ordered) matching(
	ctx context.Context, f operate.Filter, only string, size int, last int64,
) (ids []int64, next int64, err error) {
	err = o.Look(ctx, func(tx *sql.Tx) error {
		w, err := o.Window(ctx, tx, f)
		if err != nil {
			return err
		}
		ids, next = nil, last
		if w.Next > 0 {
			next = w.Next
		}
		if only != "" {
			w = w.And(only)
		}
		return o.Each(ctx, tx, w, o.ID, `ORDER BY `+o.ID+` LIMIT `+strconv.Itoa(size), func(scan func(dest ...any) error) error {
			var id int64
			err := scan(&id)
			if id <= last {
				ids = append(ids, id)
			}
			return err
		})
	})
	if len(ids) == size {
		next = ids[size-1]
	}
	return ids, next, err
}
