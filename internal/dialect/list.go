package dialect

import (
	"encoding/json"
	"strconv"
	"strings"
)

// List returns numbers as a single parameter of a query. Use the parameter in the
// {list} placeholder or, in PostgreSQL, in a cast to bigint[]. A list of any length
// then needs only one parameter, and does not need the array type of a driver.
func (d Dialect) List(values []int64) string {
	opening, closing := byte('{'), byte('}')
	if d.SQLite() {
		opening, closing = '[', ']'
	}
	b := make([]byte, 0, 2+8*len(values))
	b = append(b, opening)
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return string(append(b, closing))
}

var arrayEscape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// Strings is like [Dialect.List], for strings. The values must be valid UTF-8 without
// NUL characters.
func (d Dialect) Strings(values []string) string {
	if d.SQLite() {
		if values == nil {
			values = []string{}
		}
		encoded, _ := json.Marshal(values) // encoding strings cannot fail
		return string(encoded)
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		_, _ = arrayEscape.WriteString(&b, v)
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}
