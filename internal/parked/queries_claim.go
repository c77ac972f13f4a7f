package parked

import (
	"strconv"

	"github.com/watermill-once/once/internal/dialect"
)

// claimQueries are the statements that look for what is due, and claim it.
type claimQueries struct {
	due          string
	walk         string
	longest      string
	claim        string
	claimCrashed string
}

// As the indexes have it: what waits under which no process has ended, and the
// other half.
const (
	waits   = `state = 'waiting' AND crashes = 0 AND consumer = $1 AND topic = $2`
	crashed = `state = 'waiting' AND crashes > 0 AND consumer = $1 AND topic = $2`
)

func newClaimQueries(d dialect.Dialect, clock string) claimQueries {
	// The lease is the new due time, so that one sweep finds both what became
	// due and what was left behind.
	lease := `
		UPDATE {parked}
		SET owner = $3, token = $4, due_at = {after $5}, crashes = ` + OneMore("crashes") + `
		WHERE id `
	// The length is known without reading the envelope, which may be stored
	// elsewhere.
	returning := `
		RETURNING id, attempts, rounds, crashes, replays, priority_class, tenant, ` + clock + ` - {millis created_at},
		          COALESCE(ordering_key, ''), COALESCE(` + clock + ` - {millis early_since}, 0), length(envelope),
		          CASE WHEN length(envelope) <= CAST($6 AS bigint) THEN envelope END, ` +
		Undecodable + `, error, error_type`

	// All shares in one statement. SQLite cannot take a limit from a table; it
	// is given one share at a time, which costs it no round trip.
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

	return claimQueries{
		// In the order of the lanes, and crashed. Not EXISTS: that has no order,
		// and PostgreSQL could take it for one table scan, or ask for all tenants
		// at once.
		due: d.SQL(`
			SELECT (SELECT 1 FROM {parked} WHERE ` + waits + ` AND priority_class = 'live' AND due_at <= {now}
			        ORDER BY tenant, due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE ` + waits + ` AND priority_class || '' = 'retry' AND due_at <= {now}
			        ORDER BY due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE ` + waits + ` AND priority_class = 'replay' AND due_at <= {now}
			        ORDER BY tenant, due_at LIMIT 1) IS NOT NULL,
			       (SELECT 1 FROM {parked} WHERE ` + crashed + ` AND due_at <= {now}
			        ORDER BY due_at LIMIT 1) IS NOT NULL`),

		// From tenant to tenant, a step in the index each, whatever waits in
		// between.
		walk: d.SQL(`
			WITH RECURSIVE seen (n, start, tenant, next) AS (
				SELECT 0, ` + none + `, ` + none + `, ` + following(`$4`) + `
			UNION ALL
				SELECT n + 1, CASE WHEN n = 0 THEN next ELSE start END, next, ` + following(`seen.next`) + `
				FROM seen
				WHERE n < ` + strconv.Itoa(looked) + ` AND next IS NOT NULL AND (n = 0 OR next <> start)
			)
			SELECT tenant, (SELECT 1 FROM {parked} AS p
			                WHERE ` + waits + ` AND priority_class = $3 AND p.tenant = seen.tenant AND due_at <= {now}
			                ORDER BY due_at LIMIT 1) IS NOT NULL
			FROM seen WHERE n > 0
			ORDER BY n`),

		longest: d.SQL(`
			SELECT DISTINCT tenant
			FROM (SELECT tenant FROM {parked} WHERE ` + waits + ` AND priority_class || '' = 'retry' AND due_at <= {now}
			      ORDER BY due_at LIMIT ` + strconv.Itoa(looked) + `) AS longest`),

		claim: d.SQL(lease + among + due + end + returning),
		claimCrashed: d.SQL(lease + among + `
			SELECT id FROM {parked}
			WHERE ` + crashed + ` AND due_at <= {now}
			ORDER BY due_at, id LIMIT $7
			{skip_locked}` + end + returning),
	}
}

// looked is how many tenants of a priority_class one walk comes to at most, and how many
// of the retries that are due longest are asked whose they are.
const looked = 64

// following is the tenant whose turn is after another's: the next in the index,
// or from its end the first.
func following(tenant string) string {
	const of = `(SELECT p.tenant FROM {parked} AS p WHERE ` + waits + ` AND priority_class = $3`
	return `COALESCE(` + of + ` AND p.tenant > ` + tenant + ` ORDER BY p.tenant LIMIT 1), ` + of + ` ORDER BY p.tenant LIMIT 1))`
}
