package rows

import (
	"cmp"
	"context"
	"database/sql"
	"strconv"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/operate"
)

const (
	PageRows = 100

	// windowRows limits the rows of one index that a call reads for several conditions.
	windowRows = 10_000

	countRows = 50_000

	// fewRows limits the rows from an index that is not in the order of the ids.
	fewRows = 5_000

	// spanRows limits the rows that are read to find the lowest and the highest id.
	spanRows = 100_000
)

// Searched is a table whose indexes find the rows that match a Filter.
type Searched struct {
	DB
	Table

	Name string // as a placeholder of dialect.SQL

	// Columns are what every call and condition may read: no part of a content, so that a role
	// without this right can search.
	Columns string

	// Leads are the fields, rarest first, for which an index finds the rows in the order of their
	// IDs. Fields in one list share an index.
	Leads [][]string

	// MostRows is windowRows for this table. Defaults to 10,000.
	MostRows int

	// Narrow adds limits on the IDs to a filter, which it finds by indexes in another order.
	Narrow func(ctx context.Context, tx *sql.Tx, f operate.Filter) (operate.Filter, error)
}

// Few returns the ids of the rows that match c. If there are more than 5,000, it returns false.
func (s *Searched) Few(ctx context.Context, tx *sql.Tx, c *Conditions) (ids []int64, few bool, err error) {
	ids, err = IDs(ctx, tx, s.SQL(`SELECT id FROM `+s.Name+` `+c.Where()+` LIMIT `+strconv.Itoa(fewRows+1)), c.Args...)
	if err != nil || len(ids) > fewRows {
		return nil, false, err
	}
	return ids, true, nil
}

// Span returns the lowest and the highest id of the rows that match c. If there are more
// than 100,000, it returns false.
func (s *Searched) Span(ctx context.Context, tx *sql.Tx, c *Conditions) (first, last int64, known bool, err error) {
	var n int
	err = tx.QueryRowContext(ctx, s.SQL(`SELECT COUNT(*), COALESCE(MIN(w.id), 0), COALESCE(MAX(w.id), 0) FROM (
		SELECT id FROM `+s.Name+` `+c.Where()+` LIMIT `+strconv.Itoa(spanRows+1)+`) AS w`), c.Args...).Scan(&n, &first, &last)
	return first, last, n <= spanRows, err
}

// Window is the part of a table in which one call searches.
type Window struct {
	from string
	Args []any // arguments of the clauses that From returns

	// Next is the id after which the next call continues, or 0 if no later row can match.
	Next int64
}

// columnsMark is where From inserts further columns into Window.from.
const columnsMark = "{more}"

// From returns the FROM and WHERE clauses of a query of [Searched.Columns] and columns. The rows
// have the alias a.
func (w Window) From(columns ...string) string {
	return strings.Replace(w.from, columnsMark, strings.Join(append([]string{""}, columns...), ", "), 1)
}

// And returns the window with another condition.
func (w Window) And(condition string) Window {
	w.from += ` AND ` + condition
	return w
}

// Whole returns a window that has no limit, for the rows that match c.
func (s *Searched) Whole(c *Conditions) Window {
	return Window{from: s.Name + ` AS a ` + c.Where(), Args: c.Args}
}

// Window returns the part of the table in which a call looks for the rows that match f.
// If newest is true, the part begins at the highest ID.
func (s *Searched) Window(ctx context.Context, tx *sql.Tx, f operate.Filter, newest bool) (Window, error) {
	if err := s.InOrder(ctx, tx); err != nil {
		return Window{}, err
	}
	f, err := s.Narrow(ctx, tx, f)
	if err != nil {
		return Window{}, err
	}
	all := func(c *Conditions) { c.Filter(s.Dialect, s.Table, f) }
	if f.IDs != nil {
		ids := &Conditions{}
		ids.Add(s.IDs, s.List(f.IDs))
		return s.lead(ids, all, ` LIMIT `+strconv.Itoa(len(f.IDs)), 0), nil
	}
	leads, c := s.leads(f), s.Where(f)
	one := len(leads) == 1 && len(leads[0].Texts) == len(c.Texts)
	if f.MessageID != "" || one { // an index finds only rows that match
		return s.Whole(c), nil
	}
	return s.Bounded(ctx, tx, leads, all, newest)
}

func (s *Searched) leads(f operate.Filter) (all []*Conditions) {
	for _, fields := range s.Leads {
		if lead := Only(f, fields...); hasText(lead) {
			all = append(all, s.Where(lead))
		}
	}
	if len(all) == 0 {
		all = append(all, s.Where(Only(f)))
	}
	return all
}

// lead returns a window with a subquery for lead, which end limits. The conditions of add are
// outside, after the limit: otherwise the database could choose an index with which it reads many
// rows that do not match.
func (s *Searched) lead(lead *Conditions, add func(c *Conditions), end string, next int64) Window {
	c := &Conditions{Args: lead.Args}
	add(c)
	return Window{
		`(SELECT ` + s.Columns + columnsMark + ` FROM ` + s.Name + ` ` + lead.Where() + end + `) AS a ` + c.Where(), c.Args, next,
	}
}

// Bounded returns a window for several conditions, which add adds. Each element of leads has some
// of them, for which an index finds the rows in the order of the ids. If fewer than MostRows rows
// match one, the window has them all, of an element with few rows if possible. Otherwise it has the
// first MostRows rows of the element with which it covers the largest part of the table, from the
// highest id if newest is true.
func (s *Searched) Bounded(
	ctx context.Context, tx *sql.Tx, leads []*Conditions, add func(c *Conditions), newest bool,
) (Window, error) {
	most := cmp.Or(s.MostRows, windowRows)
	order, end := ` ORDER BY id LIMIT `, `MAX`
	if newest {
		order, end = ` ORDER BY id DESC LIMIT `, `MIN`
	}
	order += strconv.Itoa(most)
	var (
		best   *Conditions
		next   int64
		fewest = most
	)
	for _, lead := range leads {
		var (
			n    int
			last int64
		)
		err := tx.QueryRowContext(ctx, s.SQL(`SELECT COUNT(*), COALESCE(`+end+`(w.id), 0) FROM (
			SELECT id FROM `+s.Name+` `+lead.Where()+order+`) AS w`), lead.Args...).Scan(&n, &last)
		if err != nil {
			return Window{}, err
		}
		switch further := last > next != newest; {
		case n < fewest:
			best, next, fewest = lead, 0, n
		case best == nil, fewest == most && further:
			best, next = lead, last
		}
		if fewest <= fewRows {
			break
		}
	}
	return s.lead(best, add, order, next), nil
}

// Count counts rows that match f, at most 50,000. If f.Limit is not 0, it stops at this number.
func (s *Searched) Count(ctx context.Context, f operate.Filter) (n operate.Count, err error) {
	if err := s.Check(f); err != nil {
		return operate.Count{}, err
	}
	most := min(countRows, cmp.Or(f.Limit, countRows))
	err = s.Look(ctx, func(tx *sql.Tx) error {
		w, err := s.Window(ctx, tx, f, false)
		if err != nil {
			return err
		}
		query := `SELECT COUNT(*), COALESCE(MAX(w.id), 0) FROM (
			SELECT id FROM ` + w.From() + ` ORDER BY id LIMIT ` + strconv.Itoa(most) + `) AS w`
		err = tx.QueryRowContext(ctx, s.SQL(query), w.Args...).Scan(&n.N, &n.Next)
		if n.N < most {
			n.Next = w.Next
		}
		return err
	})
	return n, err
}

// List returns a page of rows. window returns where to look, with the FROM and WHERE clauses of the
// query. read reads a row, and returns its ID.
func List[Row any](
	ctx context.Context, d DB, t Table, f operate.Filter, columns string,
	window func(tx *sql.Tx) (w Window, from string, err error), read func(scan func(dest ...any) error) (Row, int64, error),
) (p operate.Page[Row], err error) {
	if err := t.Check(f); err != nil {
		return p, err
	}
	var last int64
	limit := cmp.Or(f.Limit, PageRows)
	err = d.Look(ctx, func(tx *sql.Tx) error {
		w, from, err := window(tx)
		if err != nil {
			return err
		}
		p = operate.Page[Row]{Next: w.Next}
		return dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) (err error) {
			var row Row
			row, last, err = read(scan)
			p.Rows = append(p.Rows, row)
			return err
		}, d.SQL(`SELECT `+columns+` FROM `+from+` ORDER BY `+t.ID+` LIMIT `+strconv.Itoa(limit)), w.Args...)
	})
	if len(p.Rows) == limit {
		p.Next = last
	}
	return p, err
}
