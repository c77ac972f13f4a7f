package oncetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// state contains the rows of the tables in a form that can be compared.
type state []contents

type contents struct {
	table table
	rows  []row // sorted, because the database may return rows in any order
}

type row []string

// Equal values have equal strings.
func canonical(value any) string {
	switch v := value.(type) {
	case nil:
		return "NULL"
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case []byte:
		if !utf8.Valid(v) {
			return fmt.Sprintf(`\x%x`, v)
		}
		return fmt.Sprintf("%q", v)
	case string:
		return fmt.Sprintf("%q", v)
	default:
		return fmt.Sprint(v)
	}
}

// compare describes the first difference between got and want, or returns "". origin says where
// want comes from, such as "one delivery gives".
func compare(got, want state, origin string) string {
	for i := range want {
		if d := want[i].difference(got[i].rows, "where "+origin); d != "" {
			return "table " + want[i].table.name + " " + d
		}
	}
	return ""
}

func (c contents) difference(got []row, where string) string {
	extra, missing := without(got, c.rows), without(c.rows, got)
	switch {
	case len(extra) == 0 && len(missing) == 0:
		return ""
	case len(got) > len(c.rows):
		return fmt.Sprintf("has %s %s %d: %s is too many", count(len(got)), where, len(c.rows), c.text(extra[0]))
	case len(got) < len(c.rows):
		return fmt.Sprintf("has %s %s %d: %s is missing", count(len(got)), where, len(c.rows), c.text(missing[0]))
	}
	// The numbers of rows are equal, so a value differs, best seen in two similar rows.
	wanted, found := missing[0], extra[0]
	for _, candidate := range extra[1:] {
		if len(differing(candidate, wanted)) < len(differing(found, wanted)) {
			found = candidate
		}
	}
	var columns []string
	for _, i := range differing(found, wanted) {
		columns = append(columns, fmt.Sprintf("%s=%s %s %s", c.table.columns[i], short(found[i]), where, short(wanted[i])))
	}
	return fmt.Sprintf("has %s, in %s; add columns that differ in each run, such as generated ids and times, to Config.Ignore",
		strings.Join(columns, ", "), c.text(found))
}

// without removes one occurrence of a row in a for each in b. Both lists must be sorted.
func without(a, b []row) []row {
	var left []row
	for _, r := range a {
		for len(b) > 0 && slices.Compare(b[0], r) < 0 {
			b = b[1:]
		}
		if len(b) > 0 && slices.Equal(b[0], r) {
			b = b[1:]
			continue
		}
		left = append(left, r)
	}
	return left
}

func differing(a, b row) []int {
	var all []int
	for i := range a {
		if a[i] != b[i] {
			all = append(all, i)
		}
	}
	return all
}

func count(rows int) string {
	if rows == 1 {
		return "1 row"
	}
	return fmt.Sprintf("%d rows", rows)
}

func (c contents) text(r row) string {
	words := make([]string, len(r))
	for i := range r {
		words[i] = c.table.columns[i] + "=" + short(r[i])
	}
	return "(" + strings.Join(words, " ") + ")"
}

func short(value string) string { return shorten(value, 60) }

type table struct {
	name    string
	columns []string // names of the columns to compare, sorted
	query   string
}

// findTables returns the handler's tables, and the outbox with what a receiver sees.
func (s *subject) findTables(ctx context.Context) ([]table, error) {
	names := s.config.Tables
	if len(names) == 0 {
		var err error
		if names, err = s.list(ctx); err != nil {
			return nil, fmt.Errorf("list the tables: %w", err)
		}
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	config := s.dialect.Config()
	unmatched := map[string]bool{}
	for _, name := range s.config.Ignore {
		unmatched[name] = true
	}
	var all []table
	var errs []error
	for _, name := range names {
		columns, err := s.columns(ctx, quote(name))
		if err != nil {
			errs = append(errs, fmt.Errorf("table %s: %w", name, err))
			continue
		}
		all = append(all, s.newTable(name, quote(name), columns, unmatched))
	}
	outbox := []string{"message_id", "topic", "ordering_key", "payload", "metadata"}
	all = append(all, s.newTable(config.Prefix+"outbox", config.Table("outbox"), outbox, unmatched))
	// A missing table has no columns either. Report only the table.
	if len(errs) == 0 && len(unmatched) > 0 {
		errs = append(errs, fmt.Errorf("Ignore: there is no column %s", strings.Join(slices.Sorted(maps.Keys(unmatched)), ", no column ")))
	}
	return all, errors.Join(errs...)
}

// newTable leaves out ignored columns, and removes their names from unmatched.
func (s *subject) newTable(name, quoted string, columns []string, unmatched map[string]bool) table {
	t := table{name: name}
	for _, column := range slices.Sorted(slices.Values(columns)) {
		ignored := false
		for _, spelling := range []string{column, name + "." + column} {
			if slices.Contains(s.config.Ignore, spelling) {
				ignored = true
				delete(unmatched, spelling)
			}
		}
		if !ignored {
			t.columns = append(t.columns, column)
		}
	}
	if len(t.columns) == 0 { // only the number of rows can be compared
		t.columns = []string{"row"}
		t.query = "SELECT 1 FROM " + quoted
		return t
	}
	words := make([]string, len(t.columns))
	for i, column := range t.columns {
		words[i] = quotePart(column)
	}
	t.query = "SELECT " + strings.Join(words, ", ") + " FROM " + quoted
	return t
}

func (s *subject) list(ctx context.Context) ([]string, error) {
	query := `SELECT relname FROM pg_class
		WHERE relkind IN ('r', 'p') AND NOT relispartition AND pg_table_is_visible(oid)
		  AND relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)`
	if s.dialect.SQLite() {
		query = `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'`
	}
	rows, err := s.config.DB.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(name, s.dialect.Config().Prefix) && !strings.Contains(name, ".") {
			names = append(names, name)
		}
	}
	return names, rows.Err()
}

func (s *subject) columns(ctx context.Context, quoted string) ([]string, error) {
	rows, err := s.config.DB.QueryContext(ctx, "SELECT * FROM "+quoted+" WHERE 1 = 0")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err == nil && len(columns) == 0 {
		err = errors.New("it has no columns")
	}
	return columns, errors.Join(err, rows.Err())
}

func (s *subject) read(ctx context.Context) (state, error) {
	all := make(state, len(s.tables))
	for i, t := range s.tables {
		rows, err := s.config.DB.QueryContext(ctx, t.query)
		if err == nil {
			all[i], err = contentsOf(t, rows)
		}
		if err != nil {
			return nil, fmt.Errorf("oncetest: read table %s: %w", t.name, err)
		}
	}
	return all, nil
}

func contentsOf(t table, rows *sql.Rows) (contents, error) {
	defer rows.Close()
	all := contents{table: t}
	values, into := make([]any, len(t.columns)), make([]any, len(t.columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return all, err
		}
		row := make(row, len(values))
		for i, value := range values {
			row[i] = canonical(value)
		}
		all.rows = append(all.rows, row)
	}
	slices.SortFunc(all.rows, slices.Compare[row])
	return all, rows.Err()
}

func quote(name string) string {
	parts := strings.Split(name, ".")
	for i, part := range parts {
		parts[i] = quotePart(part)
	}
	return strings.Join(parts, ".")
}

func quotePart(name string) string {
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}
