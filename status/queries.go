package status

import "strings"

// counted describes a count of rows. The count stops at a limit, which is the argument
// $1 of countsQuery.
type counted struct {
	to *Count

	// rows is the name of a table. If only some of its rows are counted, an SQL condition
	// follows. The field order names the columns of an index that contains only these rows.
	// With this order, the planner does not read the whole table, even if its statistics
	// are missing or old. If every row of the table is counted, the field order is "".
	rows, order string
}

func (s *Status) counts() []counted {
	return []counted{
		{&s.Outbox.Pending, `{outbox}`, ``},
		{&s.Outbox.Deferred, `{outbox} WHERE due_at > {now}`, `due_at`},
		{&s.Outbox.Failing, `{outbox} WHERE failing_since IS NOT NULL`, `failing_since`},
		{&s.Outbox.BlockedKeys, `{blocked_keys}`, ``},
		{&s.Dead, `{outbox_dead}`, ``},
		{&s.Waiting, `{parked} WHERE state = 'waiting' AND crashes = 0`, `consumer, topic, priority_class, tenant, due_at, id`},
		{&s.Held, `{parked} WHERE state = 'held'`, `consumer, topic, ordering_key, id`},
		{&s.Quarantine, `{parked} WHERE state = 'quarantined'`, `id`},
	}
}

// countsQuery returns a query that reads at most $1 rows for each count. It searches for
// the oldest due message only among the first $1 rows of the outbox. Otherwise it would
// read the whole outbox if all messages are delayed.
func countsQuery(sqlite bool) string {
	clock := `{millis clock_timestamp()}`
	if sqlite {
		clock = `{now}`
	}
	var b strings.Builder
	b.WriteString(`SELECT ` + clock + `,
		(SELECT {millis MIN(f.created_at)} FROM (SELECT created_at, due_at FROM {outbox} ORDER BY position LIMIT $1) AS f
		 WHERE f.due_at IS NULL),
		(SELECT {millis due_at} FROM {outbox} WHERE due_at <= {now} ORDER BY due_at LIMIT 1),
		(SELECT {millis failing_since} FROM {outbox} WHERE failing_since IS NOT NULL ORDER BY failing_since LIMIT 1),
		(SELECT COUNT(*) FROM {slots} WHERE owner IS NULL OR lease_until IS NULL OR lease_until < {now}),
		(SELECT COUNT(*) FROM {replays} WHERE state = 'running' AND lease_until > {now})`)
	for _, c := range new(Status).counts() {
		b.WriteString(`,
		(SELECT COUNT(*) FROM (SELECT 1 AS one FROM ` + c.rows)
		if c.order != "" {
			b.WriteString(` ORDER BY ` + c.order)
		}
		b.WriteString(` LIMIT $1) AS counted)`)
	}
	return b.String()
}

const failuresQuery = `
	SELECT fingerprint, MIN(consumer), MIN(reason), MIN(error_type), COUNT(*), {millis MAX(last_failed_at)}
	FROM (SELECT fingerprint, consumer, reason, error_type, last_failed_at FROM {parked}
	      WHERE state = 'quarantined' ORDER BY id DESC LIMIT 1000) AS latest
	GROUP BY fingerprint ORDER BY COUNT(*) DESC, fingerprint LIMIT 5`
