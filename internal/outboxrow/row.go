package outboxrow

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/meta"
)

// LabelColumns copy up to maxLabel characters of metadata, for searches.
const LabelColumns = `tenant, aggregate_type, aggregate_id, event_type, causation_id`

var labelKeys = []string{meta.TenantID, meta.AggregateType, meta.AggregateID, meta.EventType, meta.CausationID}

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

// Labels returns SQL expressions for [LabelColumns] from the metadata of row o, and what must
// follow o in the FROM clause, for PostgreSQL.
//
// PostgreSQL cannot decode JSON with an escape such as \u0000 or half a surrogate pair, even if the
// query does not use that string. Package outbox never writes them. If somebody has, or metadata in
// another form, the labels are empty, so that the row does not stop a forwarder. json_to_record is
// used once, because five ->> operators take PostgreSQL much longer.
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
		AND (strpos(CAST(o.metadata AS text), '\u') = 0 OR CAST(o.metadata AS text) !~* '` + unreadable + `')
		THEN o.metadata END) AS l(` + strings.Join(columns, ", ") + `) ON true `
}

// MessageID returns an SQL expression for the id of row o, shortened if an index of PostgreSQL could not
// store it. Package outbox never writes such ids.
func MessageID(d dialect.Dialect) string {
	if d.SQLite() {
		return `o.message_id`
	}
	return `CASE WHEN octet_length(o.message_id) > 2000 THEN left(o.message_id, 500) ELSE o.message_id END`
}

// unreadable matches JSON escapes that PostgreSQL does not convert to text. A backslash after an odd
// number of others begins no escape, as in the path C:\\UDF.
const unreadable = `(^|[^\\])(\\\\)*\\u(0000|d[89a-f])`

// MetadataField returns an SQL expression for the value of a metadata key of row o, or NULL. For
// invalid metadata see [Labels].
func MetadataField(d dialect.Dialect, key string) string {
	field := `o.metadata ->> '` + key + `'`
	if d.SQLite() {
		return `CASE WHEN json_valid(o.metadata) THEN ` + field + ` END`
	}
	return `CASE WHEN strpos(CAST(o.metadata AS text), '\u') = 0 OR CAST(o.metadata AS text) !~* '` + unreadable + `' THEN ` + field + ` END`
}

// DecodeMetadata returns the metadata of a row, or an error if text is not a JSON object of
// strings. Metadata without escapes is decoded without encoding/json, which would take more time
// than all other work of the forwarder on a message.
func DecodeMetadata(text []byte) (message.Metadata, error) {
	if bytes.IndexByte(text, '\\') < 0 {
		if metadata, ok := decodePlain(string(text)); ok {
			return metadata, nil
		}
	}
	metadata := message.Metadata{}
	if err := json.Unmarshal(text, &metadata); err != nil {
		return nil, err
	}
	if metadata == nil { // null
		metadata = message.Metadata{}
	}
	return metadata, nil
}

// decodePlain returns false for JSON with escapes, and invalid JSON.
func decodePlain(text string) (message.Metadata, bool) {
	const stamps = 2 // the forwarder adds them
	metadata := make(message.Metadata, strings.Count(text, `"`)/4+stamps)
	rest, ok := strings.CutPrefix(text, "{")
	if !ok || rest == "}" {
		return metadata, ok
	}
	for {
		var key, value string
		if key, rest, ok = cutString(rest); !ok {
			return nil, false
		}
		if rest, ok = strings.CutPrefix(strings.TrimLeft(rest, " "), ":"); !ok {
			return nil, false
		}
		if value, rest, ok = cutString(rest); !ok {
			return nil, false
		}
		metadata[key] = value
		switch rest = strings.TrimLeft(rest, " "); {
		case rest == "}":
			return metadata, true
		case strings.HasPrefix(rest, ","):
			rest = rest[1:]
		default:
			return nil, false
		}
	}
}

func cutString(text string) (value, rest string, ok bool) {
	text, ok = strings.CutPrefix(strings.TrimLeft(text, " "), `"`)
	if !ok {
		return "", "", false
	}
	return strings.Cut(text, `"`)
}

// Slots is the number of rows of once_slots. It must not change: ordering keys would move to other
// forwarders while their messages wait.
const Slots = 64

// SlotOf returns the FNV-1a hash of the key, or of the id if key is "", modulo Slots. It must be
// the same in every version of this module: otherwise two forwarders could send messages of one
// ordering key, in the wrong order.
func SlotOf(id, key string) int {
	hashed := key
	if hashed == "" {
		hashed = id
	}
	hash := uint32(2166136261)
	for i := range len(hashed) {
		hash = (hash ^ uint32(hashed[i])) * 16777619
	}
	return int(hash % Slots)
}
