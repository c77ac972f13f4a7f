package deadletter

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/operate"
)

// page is the length of a page if Filter.Limit is 0.
const page = 100

// table is what the tables of dead letters and of sent messages have in common.
type table struct {
	db                          *sql.DB
	dialect                     dialect.Dialect
	inboxRetention, replayLease time.Duration
	content                     *strings.Replacer // of the columns that lists leave out with Config.WithoutContent

	name    string // as a placeholder of dialect.SQL
	row     string // what a row is, in errors
	subject string // what a row is, in the audit table
	arrived string // the column with the time at which a row was inserted
	dead    bool   // whether the rows are dead letters
}

func (t table) read(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, t.db, t.dialect.Read(ctx, t.db, work))
}

func (t table) write(ctx context.Context, work func(tx *sql.Tx) error) error {
	return dialect.LeaveReplica(ctx, t.db, t.dialect.Write(ctx, t.db, work))
}

// query runs a query with the parameters of c and calls scan for each row.
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

// count returns how many rows match f, and the highest ID among them.
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

// list calls scan for each row of a page. The row has messageColumns and the
// table's own columns.
func (t table) list(ctx context.Context, f Filter, own string, scan func(rows *sql.Rows) error) error {
	if err := t.validate(f); err != nil {
		return err
	}
	return t.read(ctx, func(tx *sql.Tx) error {
		c, err := t.selected(ctx, tx, f)
		if err == nil {
			err = t.dialect.InOrder(ctx, tx)
		}
		if err != nil {
			return err
		}
		query := `SELECT ` + t.content.Replace(messageColumns+`, `+own) + ` FROM ` + t.name + ` AS a ` + c.Where() +
			` ORDER BY id LIMIT ` + c.Arg(cmp.Or(f.Limit, page))
		return t.query(ctx, tx, query, c, scan)
	})
}

// contents is the part of a row that lists leave out.
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
				row.payload = []byte{} // nil would say that the body was not read
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
