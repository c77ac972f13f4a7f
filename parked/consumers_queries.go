package parked

import (
	"fmt"

	"github.com/watermill-once/once/internal/dialect"
)

// Conditions of the partial indexes of waiting rows: one index for rows with crash
// count 0, and one for all other rows. A claim raises the crash count until the claim
// is settled. isQuarantined is the condition of the indexes on the consumers of
// quarantined rows.
const (
	isFresh       = `p.state = 'waiting' AND p.crashes = 0`
	isCrashed     = `p.state = 'waiting' AND p.crashes > 0`
	isQuarantined = `p.state || '' = 'quarantined'`
)

// namesQuery finds the registered consumers, and the consumers that have rows. To find
// the latter, it makes one step in an index for each consumer, however many rows the
// consumer has.
var namesQuery = `WITH RECURSIVE ` +
	walk("fresh", isFresh) + `, ` +
	walk("crashed", isCrashed) + `, ` +
	walk("held", `p.state = 'held'`) + `, ` +
	walk("quarantined", isQuarantined) + `
	SELECT k.consumer, k.topic, COALESCE(c.embedded, 1 = 0), COALESCE(c.key_order, 1 = 0), COALESCE(c.program, ''), COALESCE(c.handler, ''),
	       {millis c.registered_at}, {millis c.seen_at}
	FROM (SELECT consumer, topic
	      FROM (SELECT consumer, topic FROM {consumers} ORDER BY topic, consumer LIMIT ` + limitOf(maxConsumers) + `) AS registered
	      UNION SELECT consumer, topic FROM fresh UNION SELECT consumer, topic FROM crashed
	      UNION SELECT consumer, topic FROM held UNION SELECT consumer, topic FROM quarantined) AS k
	LEFT JOIN {consumers} AS c ON c.consumer = k.consumer AND c.topic = k.topic
	ORDER BY k.consumer, k.topic`

// walk returns the SQL of a recursive common table expression that contains each
// consumer and topic once, if any of its rows fulfils the SQL condition where.
func walk(name, where string) string {
	first := func(also string) string {
		return `(SELECT p.id FROM {parked} AS p WHERE ` + where + also + ` ORDER BY p.consumer, p.topic LIMIT 1)`
	}
	return name + ` (consumer, topic, n) AS (
		SELECT f.consumer, f.topic, 1 FROM {parked} AS f WHERE f.id = ` + first(``) + `
	UNION ALL
		SELECT f.consumer, f.topic, s.n + 1 FROM ` + name + ` AS s CROSS JOIN {parked} AS f
		WHERE s.n < ` + limitOf(maxConsumers) + ` AND f.id = ` + first(` AND (p.consumer, p.topic) > (s.consumer, s.topic)`) + `
	)`
}

const instancesQuery = `SELECT consumer, topic, owner, program, handler, {millis started_at}, {millis seen_at}, seen_at >= {after $1}
	FROM {consumer_instances} ORDER BY topic, consumer, started_at, owner LIMIT 10000`

// countsQuery returns a query that counts the rows of consumers. The names and topics of
// the consumers are passed as two lists. Each count is an index scan that ends at the
// limit.
func countsQuery(d dialect.Dialect, limit int) string {
	of := `p.consumer = c.consumer AND p.topic = c.topic AND `
	count := func(column, where, which string) string {
		return `(SELECT COUNT(*) FROM (SELECT ` + column + ` FROM {parked} AS p WHERE ` + where +
			` LIMIT ` + limitOf(limit) + `) AS w` + which + `)`
	}
	return `SELECT c.consumer, c.topic, ` +
		count(`1`, of+isFresh, ``) + `, ` +
		count(`1`, of+isCrashed, ``) + `, ` +
		count(`p.due_at`, of+isCrashed, ` WHERE w.due_at > {now}`) + `, ` +
		count(`1`, of+`p.state = 'held'`, ``) + `, ` +
		count(`p.attempts`, of+isFresh+` AND p.priority_class || '' = 'retry'`, ` WHERE w.attempts > 0`) + ` + ` +
		count(`p.attempts`, of+isCrashed, ` WHERE w.attempts > 0`) + `, ` +
		count(`1`, of+isQuarantined, ``) + `
		FROM ` + d.Columns("consumer text", "topic text")
}

// lagRows is a limit that lagQuery never reaches. Without a limit, PostgreSQL would
// move the condition of the outer query into the subquery. It would then search for
// each due time twice: once for the condition, and once for the result.
const lagRows = 10_000_000

// lagQuery returns a query that computes how long the oldest due row of each consumer
// has been due, in milliseconds. The names and topics of the consumers are passed as
// two lists. The query searches tenant by tenant, because the index of due rows is
// sorted by due time only within a tenant.
func lagQuery(d dialect.Dialect, tenants int) string {
	clock := `{millis now()}`
	if d.SQLite() {
		clock = `{now}`
	}
	lists := d.Columns("consumer text", "topic text")
	first := func(column, of, where string) string {
		return `(SELECT p.` + column + ` FROM {parked} AS p
			WHERE p.consumer = ` + of + `.consumer AND p.topic = ` + of + `.topic AND ` + where + ` ORDER BY p.` + column + ` LIMIT 1)`
	}
	return `WITH RECURSIVE tenants (consumer, topic, class, tenant, n) AS (
			SELECT c.consumer, c.topic, k.class, ` + first("tenant", "c", isFresh+` AND p.priority_class = k.class`) + `, 1
			FROM ` + lists + ` CROSS JOIN (SELECT 'live' AS class UNION ALL SELECT 'replay') AS k
		UNION ALL
			SELECT t.consumer, t.topic, t.class,
			       ` + first("tenant", "t", isFresh+` AND p.priority_class = t.class AND p.tenant > t.tenant`) + `, t.n + 1
			FROM tenants AS t WHERE t.tenant IS NOT NULL AND t.n < ` + limitOf(tenants) + `
		)
		SELECT consumer, topic, ` + clock + ` - {millis MIN(due)} FROM (
			SELECT t.consumer, t.topic, ` + first("due_at", "t", isFresh+` AND p.priority_class = t.class AND p.tenant = t.tenant`) + ` AS due
			FROM tenants AS t WHERE t.tenant IS NOT NULL
		UNION ALL
			SELECT c.consumer, c.topic, ` + first("due_at", "c", isFresh+` AND p.priority_class || '' = 'retry'`) + ` FROM ` + lists + `
		UNION ALL
			SELECT c.consumer, c.topic, ` + first("due_at", "c", isCrashed) + ` FROM ` + lists + `
			LIMIT ` + limitOf(lagRows) + `
		) AS oldest
		WHERE due <= {now}
		GROUP BY consumer, topic`
}

func limitOf(n int) string { return fmt.Sprint(n) }
