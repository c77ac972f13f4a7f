package deadletter

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/operate"
)

// page is the length of a page if Filter.Limit is 0.
const page = 100

// table is the table of dead letters or the table of sent messages.
type table struct {
	db                          *sql.DB
	dialect                     dialect.Dialect
	inboxRetention, replayLease time.Duration
	content                     *strings.Replacer // replaces the columns that lists leave out because of Config.WithoutContent
	withoutContent              bool

	name    string // name of the table, as a placeholder of dialect.SQL
	row     string // name of a row in errors
	subject string // name of a row in the audit log
	arrived string // column that contains the time at which a row was inserted
	dead    bool   // whether the rows are dead letters
}

func (t table) read(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, t.db, t.dialect.Look(ctx, t.db, work))
}

func (t table) write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, t.db, t.dialect.Write(ctx, t.db, work))
}

// query runs a query with the parameters of c, and calls scan for each row.
func (t table) query(ctx context.Context, tx *sql.Tx, query string, c *operate.Conditions, scan func(rows *sql.Rows) error) error {
	rows, err := tx.QueryContext(ctx, t.dialect.SQL(query), c.Args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// count returns how many rows match f, and the highest ID of these rows. It ignores
// f.Limit.
func (t table) count(ctx context.Context, f Filter) (n int, last int64, err error) {
	if err := t.validate(f); err != nil {
		return 0, 0, err
	}
	err = t.read(ctx, func(tx *sql.Tx) error {
		c, err := t.selected(ctx, tx, f)
		if err != nil {
			return err
		}
		return t.query(ctx, tx, `SELECT COUNT(*), COALESCE(MAX(id), 0) FROM `+t.name+` `+c.Where(), c,
			func(rows *sql.Rows) error { return rows.Scan(&n, &last) })
	})
	return n, last, err
}

// countPart counts rows that match f. If f.Limit is not 0, it stops at this number.
func (t table) countPart(ctx context.Context, f Filter) (n Count, err error) {
	if err := t.validate(f); err != nil {
		return Count{}, err
	}
	most := min(operate.CountRows, cmp.Or(f.Limit, operate.CountRows))
	err = t.read(ctx, func(tx *sql.Tx) error {
		w, err := t.window(ctx, tx, f, false)
		if err != nil {
			return err
		}
		query := `SELECT COUNT(*), COALESCE(MAX(w.id), 0) FROM (
			SELECT id FROM ` + w.From(t.readable(f, false)...) + ` ORDER BY id LIMIT ` + strconv.Itoa(most) + `) AS w`
		err = tx.QueryRowContext(ctx, t.dialect.SQL(query), w.Args...).Scan(&n.N, &n.Next)
		if n.N < most {
			n.Next = w.Next
		}
		return err
	})
	return n, err
}

// list calls the function scan for each row of a page. The row contains the
// messageColumns, and then the columns in the parameter columns. If everywhere is
// false, list searches only a window of the table. The result next is the last ID of
// the window, or 0 if no row after the window can match. If the page is full before the
// end of the window, the next page must begin after the last row of this page instead.
func (t table) list(
	ctx context.Context, f Filter, everywhere bool, columns string, scan func(rows *sql.Rows) error,
) (next int64, err error) {
	if err := t.validate(f); err != nil {
		return 0, err
	}
	err = t.read(ctx, func(tx *sql.Tx) error {
		find := t.window
		if everywhere {
			find = t.everywhere
		}
		w, err := find(ctx, tx, f, false)
		if err != nil {
			return err
		}
		next = w.Next
		query := `SELECT ` + t.content.Replace(messageColumns+`, `+columns) + ` FROM ` + w.From(t.readable(f, !t.withoutContent)...) +
			` ORDER BY id LIMIT ` + strconv.Itoa(cmp.Or(f.Limit, page))
		return t.query(ctx, tx, query, &operate.Conditions{Args: w.Args}, scan)
	})
	return next, err
}

// contents contains the columns of a row that are not read for lists.
type contents struct{ payload, metadata []byte }

// contents returns the contents of the rows that still exist.
func (t table) contents(ctx context.Context, ids ...int64) (map[int64]contents, error) {
	found := make(map[int64]contents, len(ids))
	c := t.conditions(Filter{IDs: ids})
	err := t.read(ctx, func(tx *sql.Tx) error {
		return t.query(ctx, tx, `SELECT id, payload, CAST(metadata AS text) FROM `+t.name+` `+c.Where(), c, func(rows *sql.Rows) error {
			var (
				id  int64
				row contents
			)
			err := rows.Scan(&id, &row.payload, &row.metadata)
			if row.payload == nil {
				row.payload = []byte{} // nil means that the body was not read
			}
			found[id] = row
			return err
		})
	})
	return found, err
}

// payload returns the body of the message in a row, or [ErrNotFound].
func (t table) payload(ctx context.Context, id int64) ([]byte, error) {
	found, err := t.contents(ctx, id)
	if err != nil {
		return nil, err
	}
	row, ok := found[id]
	if !ok {
		return nil, t.notFound(id)
	}
	return row.payload, nil
}

func (t table) notFound(id int64) error { return fmt.Errorf("%s %d: %w", t.row, id, ErrNotFound) }
