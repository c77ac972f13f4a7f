package dialect

import (
	"fmt"
	"strings"
)

// Columns returns an item for the FROM clause of a query: a table named c. The lists in
// $1, $2 and so on are its columns, see [Dialect.List] and [Dialect.Strings]. Each
// argument is the name of a column and its PostgreSQL type, such as "id bigint".
func (d Dialect) Columns(columns ...string) string {
	var values, names []string
	for i, column := range columns {
		name, kind, _ := strings.Cut(column, " ")
		if d.SQLite() {
			values = append(values, fmt.Sprintf("json_extract($%d, '$[' || e.key || ']') AS %s", i+1, name))
		} else {
			values = append(values, fmt.Sprintf("$%d::text::%s[]", i+1, kind))
		}
		names = append(names, name)
	}
	if d.SQLite() {
		return `(SELECT ` + strings.Join(values, ", ") + ` FROM json_each($1) AS e) AS c`
	}
	return `unnest(` + strings.Join(values, ", ") + `) AS c(` + strings.Join(names, ", ") + `)`
}
