package operate

import (
	"context"
	"database/sql"
	"strconv"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
)

const (
	// WindowRows is the maximum number of rows of one index that a call reads for a filter
	// with several conditions.
	WindowRows = 10_000

	// CountRows is the maximum number of rows that a call counts.
	CountRows = 50_000

	// FewRows is the maximum number of rows that a call reads from an index that is not in
	// the order of the ids.
	FewRows = 5_000

	// SpanRows is the maximum number of rows that a call reads to find the lowest and the
	// highest id.
	SpanRows = 100_000
)

// Rows is a table in which operators search.
type Rows struct {
	Dialect dialect.Dialect
	Name    string // as a placeholder of dialect.SQL

	// Columns are the columns that every call and every condition may read. They contain no
	// part of a message's content, so that a role without the right to read contents can
	// search.
	Columns string
}

// Few returns the ids of the rows that match c. If there are more than [FewRows], it
// returns false.
func (r Rows) Few(ctx context.Context, tx *sql.Tx, c *Conditions) (ids []int64, few bool, err error) {
	ids = []int64{}
	err = dialect.EachRow(ctx, tx, func(scan func(dest ...any) error) error {
		var id int64
		err := scan(&id)
		ids = append(ids, id)
		return err
	}, r.Dialect.SQL(`SELECT id FROM `+r.Name+` `+c.Where()+` LIMIT `+strconv.Itoa(FewRows+1)), c.Args...)
	if err != nil || len(ids) > FewRows {
		return nil, false, err
	}
	return ids, true, nil
}

// Span returns the lowest and the highest id of the rows that match c. If there are more
// than [SpanRows], it returns false.
func (r Rows) Span(ctx context.Context, tx *sql.Tx, c *Conditions) (first, last int64, known bool, err error) {
	var n int
	err = tx.QueryRowContext(ctx, r.Dialect.SQL(`SELECT COUNT(*), COALESCE(MIN(w.id), 0), COALESCE(MAX(w.id), 0) FROM (
		SELECT id FROM `+r.Name+` `+c.Where()+` LIMIT `+strconv.Itoa(SpanRows+1)+`) AS w`), c.Args...).Scan(&n, &first, &last)
	return first, last, n <= SpanRows, err
}

// Window is the part of a table in which one call searches.
type Window struct {
	from string
	Args []any // arguments of the clauses that From returns

	// Next is the last id of the window. The next call continues after this id. Next is 0
	// if no row after the window can match.
	Next int64
}

// columnsMark marks the place in Window.from where From inserts further columns.
const columnsMark = "{more}"

// From returns the FROM and WHERE clauses of a query that reads [Rows.Columns] and the
// given columns. The rows have the alias a.
func (w Window) From(columns ...string) string {
	return strings.Replace(w.from, columnsMark, strings.Join(append([]string{""}, columns...), ", "), 1)
}

// Whole returns a window that has no limit, for the rows that match c.
func (r Rows) Whole(c *Conditions) Window {
	return Window{from: r.Name + ` AS a ` + c.Where(), Args: c.Args}
}

// Among returns a window that contains only rows with known ids. The parameter ids
// contains a condition that selects these ids, and n is their number. The function
// addConditions adds further conditions.
func (r Rows) Among(ids *Conditions, addConditions func(c *Conditions), n int) Window {
	c := &Conditions{Args: ids.Args}
	addConditions(c)
	return Window{from: r.subquery(ids, ` LIMIT `+strconv.Itoa(n), c), Args: c.Args}
}

// subquery returns an item for the FROM clause: a subquery for the rows that match the
// conditions in the parameter lead. The parameter end is the last clause of the
// subquery, and limits the number of rows. The parameter conditions contains further
// conditions. They are outside of the subquery, so the database applies them after the
// limit. Otherwise the database could choose an index with which it reads many rows
// that do not match.
func (r Rows) subquery(lead *Conditions, end string, conditions *Conditions) string {
	return `(SELECT ` + r.Columns + columnsMark + ` FROM ` + r.Name + ` ` + lead.Where() + end + `) AS a ` + conditions.Where()
}

// Window returns a window for the rows that match several conditions. The function
// addConditions adds all of these conditions. Each element of leads contains some of
// them. For each element, an index finds the matching rows in the order of the ids. The
// parameter rows is the maximum number of rows of the window. If fewer rows match one
// of the elements, the window contains all rows of this element. If this is true for
// several elements, an element with few rows is preferred. Otherwise the window
// contains the first rows of one element. This is the element with which the window
// covers the largest part of the table.
//
// If the parameter newest is true, the window begins at the highest id.
func (r Rows) Window(
	ctx context.Context, tx *sql.Tx, leads []*Conditions, addConditions func(c *Conditions), rows int, newest bool,
) (Window, error) {
	order, end := ` ORDER BY id LIMIT `, `MAX`
	if newest {
		order, end = ` ORDER BY id DESC LIMIT `, `MIN`
	}
	order += strconv.Itoa(rows)
	var (
		best   *Conditions
		next   int64
		fewest = rows
	)
	for _, lead := range leads {
		var (
			n    int
			last int64
		)
		err := tx.QueryRowContext(ctx, r.Dialect.SQL(`SELECT COUNT(*), COALESCE(`+end+`(w.id), 0) FROM (
			SELECT id FROM `+r.Name+` `+lead.Where()+order+`) AS w`), lead.Args...).Scan(&n, &last)
		if err != nil {
			return Window{}, err
		}
		switch further := last > next != newest; {
		case n < fewest:
			best, next, fewest = lead, 0, n
		case best == nil, fewest == rows && further:
			best, next = lead, last
		}
		if fewest <= FewRows {
			break
		}
	}
	c := &Conditions{Args: best.Args}
	addConditions(c)
	return Window{r.subquery(best, order, c), c.Args, next}, nil
}
