package forwarder

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/dispatch"
	"github.com/watermill-once/once/internal/outboxrow"
)

// Each sweep also returns the pauses that the database contains. So no separate query
// is needed. If the returned pauses differ from the pauses that the sweep has used, the
// scheduler ignores the rows, and the next sweep uses the new pauses. While something
// is paused, the forwarder uses other queries, which cost more: a sweep runs in a
// transaction, and checks the topic and the tenant of each row.

// listPauses returns an SQL expression. The value of the expression is a JSON list of
// the pauses, or an empty string if nothing is paused.
func listPauses(d dialect.Dialect) string {
	if d.SQLite() {
		return `COALESCE((SELECT CASE WHEN COUNT(*) > 0 THEN json_group_array(json_array(kind, name)) END
		                  FROM (SELECT kind, name FROM {pauses} ORDER BY kind, name) AS p), '')`
	}
	return pausesOfPostgres
}

const pausesOfPostgres = `COALESCE((SELECT CAST(json_agg(json_build_array(kind, name) ORDER BY kind, name) AS text) FROM {pauses}), '')`

// decodePauses decodes the value of the expression that listPauses returns.
func decodePauses(text string) (p dispatch.Pauses, err error) {
	if text == "" {
		return p, nil
	}
	var list [][2]string
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return p, fmt.Errorf("forwarder: pauses: %w", err)
	}
	for _, pause := range list {
		if pause[0] == outboxrow.PausedTopic {
			p.Topics = append(p.Topics, pause[1])
		} else {
			p.Tenants = append(p.Tenants, pause[1])
		}
	}
	return p, nil
}

// leaveOutPaused returns the query of a sweep or a refill, changed so that it leaves
// out paused rows. The parameters topics and tenants are the SQL parameters that
// contain the paused topics and tenants. Paused rows without a key, and paused rows
// with a due time, are left out. The other paused rows are returned without their
// contents, because the scheduler must know which keys they block. The value -1 for
// attempts marks these rows.
func leaveOutPaused(d dialect.Dialect, query, topics, tenants string) string {
	paused := outboxrow.Paused(d, `{list `+topics+` text}`, `{list `+tenants+` text}`)
	return strings.NewReplacer(
		`ordering_key, payload,`, `ordering_key, CASE WHEN `+paused+` THEN '' ELSE payload END AS payload,`,
		`CAST(metadata AS text) AS metadata, attempts,`, `CASE WHEN `+paused+` THEN '{}' ELSE CAST(metadata AS text) END AS metadata,
		 CASE WHEN `+paused+` THEN -1 ELSE attempts END AS attempts,`,
		`CASE WHEN due_at IS NULL THEN`, `CASE WHEN ordering_key IS NULL AND `+paused+` THEN 1 = 0 WHEN due_at IS NULL THEN`,
		`due_at <= {now} AND`, `due_at <= {now} AND NOT `+paused+` AND`,
	).Replace(query)
}
