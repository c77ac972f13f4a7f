package parked

import (
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
)

// claimQueries are the statements that find due rows and claim them.
type claimQueries struct {
	due            string
	dueAlone       dialect.Statement // due as a query outside of a transaction
	nextTenants    string
	overdueTenants string
	claim          string
	claimCrashed   string
}

// Conditions that match the indexes parked_due and parked_crashed, for the consumer $1
// and the topic $2.
const (
	waits   = `state = 'waiting' AND crashes = 0 AND consumer = $1 AND topic = $2`
	crashed = `state = 'waiting' AND crashes > 0 AND consumer = $1 AND topic = $2`
)

func newClaimQueries(d dialect.Dialect) claimQueries {
	// The end of the lease is the new due time. So if the process dies, the row becomes due
	// again without further statements.
	lease := `
		UPDATE {parked}
		SET owner = $3, token = $4, due_at = {after $5}, crashes = ` + OneMore("crashes") + `
		WHERE id `
	// PostgreSQL knows the length without reading the envelope, which may be
	// stored outside of the row.
	returning := `
		RETURNING id, attempts, rounds, crashes, replays, priority_class, tenant, {clock} - {millis created_at},
		          COALESCE(ordering_key, ''), COALESCE({clock} - {millis early_since}, 0), length(envelope),
		          CASE WHEN length(envelope) <= CAST($6 AS bigint) THEN envelope END, ` +
		Undecodable + `, error, error_type`

	// With PostgreSQL, one statement claims all shares. In SQLite, LIMIT cannot contain a
	// column, so each share needs its own statement. This costs no round trips, because
	// SQLite runs in this process.
	among, end := chosen(d)
	none, due := `'' COLLATE "C"`, `
		SELECT chosen.id FROM unnest($7::text::text[], $8::text::text[], $9::text::bigint[]) AS share (priority_class, tenant, n)
		CROSS JOIN LATERAL (
			SELECT id FROM {parked} AS p
			WHERE `+waits+` AND p.priority_class = share.priority_class AND p.tenant = share.tenant AND due_at <= {now}
			ORDER BY due_at, id LIMIT share.n
			FOR UPDATE SKIP LOCKED) AS chosen`
	if d.SQLite() {
		none, due = `''`, `
		SELECT id FROM {parked}
		WHERE `+waits+` AND priority_class = $7 AND tenant = $8 AND due_at <= {now}
		ORDER BY due_at, id LIMIT $9`
	}

	// The columns are the priority classes in their order, then crashed rows. The query
	// does not use EXISTS, because PostgreSQL ignores ORDER BY inside EXISTS. Without
	// ORDER BY, it could scan the whole table, or read the rows of all tenants.
	const anyDue = `
			SELECT (SELECT 1 FROM {parked} WHERE ` + waits + ` AND priority_class = 'live' AND due_at <= {now}
			        ORDER BY tenant, due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE ` + waits + ` AND priority_class || '' = 'retry' AND due_at <= {now}
			        ORDER BY due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE ` + waits + ` AND priority_class = 'replay' AND due_at <= {now}
			        ORDER BY tenant, due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE ` + crashed + ` AND due_at <= {now}
			        ORDER BY due_at LIMIT 1) IS NOT NULL`

	return claimQueries{
		due:      d.SQL(anyDue),
		dueAlone: d.Statement("", anyDue),

		// For each tenant, PostgreSQL makes one step in the index, however many rows the
		// tenant has.
		nextTenants: d.SQL(`
			WITH RECURSIVE seen (n, start, tenant, next) AS (
				SELECT 0, ` + none + `, ` + none + `, ` + following(`$4`) + `
			UNION ALL
				SELECT n + 1, CASE WHEN n = 0 THEN next ELSE start END, next, ` + following(`seen.next`) + `
				FROM seen
				WHERE n < ` + strconv.Itoa(maxTenants) + ` AND next IS NOT NULL AND (n = 0 OR next <> start)
			)
			SELECT tenant, (SELECT 1 FROM {parked} AS p
			                WHERE ` + waits + ` AND priority_class = $3 AND p.tenant = seen.tenant AND due_at <= {now}
			                ORDER BY due_at LIMIT 1) IS NOT NULL
			FROM seen WHERE n > 0
			ORDER BY n`),

		overdueTenants: d.SQL(`
			SELECT DISTINCT tenant
			FROM (SELECT tenant FROM {parked} WHERE ` + waits + ` AND priority_class || '' = 'retry' AND due_at <= {now}
			      ORDER BY due_at LIMIT ` + strconv.Itoa(maxTenants) + `) AS overdue`),

		claim: d.SQL(lease + among + due + end + returning),
		claimCrashed: d.SQL(lease + among + `
			SELECT id FROM {parked}
			WHERE ` + crashed + ` AND due_at <= {now}
			ORDER BY due_at, id LIMIT $7
			{skip_locked}` + end + returning),
	}
}

// maxTenants is the maximum number of tenants of a class that one call of Store.Due
// examines one after another. It is also the maximum number of overdue retries whose
// tenants Due adds.
const maxTenants = 64

// following returns a query for the tenant that follows the given tenant in the index.
// After the last tenant, it begins again with the first one.
func following(tenant string) string {
	const of = `(SELECT p.tenant FROM {parked} AS p WHERE ` + waits + ` AND priority_class = $3`
	return `COALESCE(` + of + ` AND p.tenant > ` + tenant + ` ORDER BY p.tenant LIMIT 1), ` + of + ` ORDER BY p.tenant LIMIT 1))`
}
