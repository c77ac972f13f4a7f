package oncetest

import (
	"fmt"
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

// row contains the values of a row as text.
type row []string

// canonical returns a value as a string. Equal values have equal strings.
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

// compare returns a description of the first difference between the rows of got and want,
// or "" if they are equal. The description contains the parameter origin, which says
// where the rows of want come from, such as "one delivery gives".
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
	// The number of rows is equal, so a value must differ. The user sees the value best in
	// two rows that are otherwise similar.
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

// without returns the rows of a that are missing in b. If a row occurs several times,
// each occurrence in b removes only one in a. Both lists must be sorted.
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

// differing returns the indexes of the columns in which two rows differ.
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

// short returns the beginning of a long value.
func short(value string) string { return shorten(value, 60) }
