package outboxrow

import (
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
)

// LabelColumns are the columns of dead letters and of the sent log that are bounded
// copies of metadata. Searches use them.
const LabelColumns = `tenant, aggregate_type, aggregate_id, event_type, causation_id`

var labelKeys = []string{meta.TenantID, meta.AggregateType, meta.AggregateID, meta.EventType, meta.CausationID}

// maxLabel bounds a label, in characters.
const maxLabel = 255

// Label returns the value of a label as the columns have it.
func Label(value string) string {
	if len(value) <= maxLabel {
		return value
	}
	n := 0
	for i := range value {
		if n == maxLabel {
			return value[:i]
		}
		n++
	}
	return value
}

// Labels returns the values of [LabelColumns] for row o, which has a column
// metadata, and an item for FROM that follows o and has these values.
//
// PostgreSQL fails at a text with the escape of a NUL or of half a character, even
// if no query asks for that text. Package outbox never writes them. A row that has
// them, or metadata of another form, gets empty labels: a row that somebody edited
// must not stop a forwarder. One json_to_record costs PostgreSQL a fraction of five
// ->> operators.
func Labels(d dialect.Dialect) (values, join string) {
	var all, columns []string
	for _, key := range labelKeys {
		if d.SQLite() {
			all = append(all, `COALESCE(CASE WHEN json_valid(o.metadata) THEN substr(o.metadata ->> '`+key+`', 1, 255) END, '')`)
		} else {
			all = append(all, `COALESCE(substr(l.`+key+`, 1, 255), '')`)
			columns = append(columns, key+` text`)
		}
	}
	values = strings.Join(all, ", ")
	if d.SQLite() {
		return values, ""
	}
	return values, ` LEFT JOIN LATERAL json_to_record(CASE WHEN json_typeof(o.metadata) = 'object'
		AND (strpos(CAST(o.metadata AS text), '\u') = 0 OR CAST(o.metadata AS text) !~* '\\u(0000|d[89a-f])')
		THEN o.metadata END) AS l(` + strings.Join(columns, ", ") + `) ON true `
}

// MetadataField returns an expression for the value of a metadata key of row o, or
// NULL, see [Labels].
func MetadataField(d dialect.Dialect, key string) string {
	field := `o.metadata ->> '` + key + `'`
	if d.SQLite() {
		return `CASE WHEN json_valid(o.metadata) THEN ` + field + ` END`
	}
	return `CASE WHEN strpos(CAST(o.metadata AS text), '\u') = 0 OR CAST(o.metadata AS text) !~* '\\u(0000|d[89a-f])' THEN ` + field + ` END`
}
