package outboxrow

import (
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
)

// LabelColumns are columns of the dead letters and of the sent log. They contain copies
// of metadata, up to maxLabel characters, for searches.
const LabelColumns = `tenant, aggregate_type, aggregate_id, event_type, causation_id`

var labelKeys = []string{meta.TenantID, meta.AggregateType, meta.AggregateID, meta.EventType, meta.CausationID}

// maxLabel is the maximum length of a label, in characters.
const maxLabel = 255

// Label shortens a value to maxLabel characters, as in the columns of [LabelColumns].
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

// Labels returns SQL expressions for the values of [LabelColumns], which are in the
// column metadata of row o. The result join is a part of the FROM clause that the
// expressions need. It must follow o there, and is empty for SQLite.
//
// If a JSON string contains an escape such as \u0000 or a half of a surrogate pair,
// PostgreSQL cannot decode the JSON, even if the query does not use this string.
// Package outbox never writes such escapes. If somebody has written one by hand, or
// metadata in another form, the labels of the row are empty, so that the row does not
// stop a forwarder. The expressions use json_to_record once, because five ->> operators
// take PostgreSQL much longer.
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

// MetadataField returns an SQL expression for the value of a metadata key of row o. The
// value is NULL if the key is missing. See [Labels] for invalid metadata.
func MetadataField(d dialect.Dialect, key string) string {
	field := `o.metadata ->> '` + key + `'`
	if d.SQLite() {
		return `CASE WHEN json_valid(o.metadata) THEN ` + field + ` END`
	}
	return `CASE WHEN strpos(CAST(o.metadata AS text), '\u') = 0 OR CAST(o.metadata AS text) !~* '\\u(0000|d[89a-f])' THEN ` + field + ` END`
}
