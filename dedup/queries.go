package dedup

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/schema"
)

type claimQueries struct {
	insert        dialect.Statement // also sets the timeout
	markAndInsert dialect.Statement // also sets the timeout and the mark
	same          dialect.Statement

	// For batches: insert and same for several rows.
	claim   func(rows int) string
	digests string
}

func newClaimQueries(d dialect.Dialect, c Config) claimQueries {
	// Every message needs this statement, so it sets the timeout too, which saves a round trip.
	insert := func(settings string) dialect.Statement {
		return d.Statement(settings, `
			INSERT INTO {inbox} (message_id, consumer, digest, tenant) VALUES ($1, $2, $3, $4)
			ON CONFLICT (message_id, consumer) DO NOTHING`)
	}
	return claimQueries{
		insert:        insert(c.settings(false)),
		markAndInsert: insert(c.settings(true)),

		// Combined with insert, this would cost more than both.
		same: d.Statement("", `
			SELECT digest = $3 FROM {inbox} WHERE message_id = $1 AND consumer = $2`),

		claim: newClaim(d),
		digests: d.SQL(`
			SELECT message_id, digest FROM {inbox} WHERE consumer = $1 AND message_id IN {list $2 text}`),
	}
}

// settings sets the timeouts of a transaction. With mark it also marks it, see [dialect.Check].
func (c Config) settings(mark bool) string {
	if c.Schema.Dialect == schema.SQLite {
		return dialect.MarkSQLite
	}
	idle := fmt.Sprintf(`SET LOCAL idle_in_transaction_session_timeout = %d`, c.IdleTimeout.Milliseconds())
	if mark {
		return idle + `; ` + dialect.MarkTransaction
	}
	return idle
}

type queries struct {
	beforeClaim func(lock time.Duration) string
	afterClaim  string // empty for SQLite

	sweepInbox      string
	sweepInboxFrom  string // continues at the time at which the previous batch ended
	sweepParked     string
	sweepParkedFrom string

	size string

	keys keyQueries

	sweepRows func(table string) string
	days      dayQueries
}

func newQueries(d dialect.Dialect, c Config) queries {
	q := queries{
		beforeClaim: func(lock time.Duration) string {
			return c.settings(true) + `; ` + setLockTimeout(lock)
		},
		afterClaim: `SET LOCAL lock_timeout TO DEFAULT`,

		sweepParked:     sweepParked(d, ``),
		sweepParkedFrom: sweepParked(d, `AND finished_at >= {from_millis $3}`),

		size: sizeQuery(d),

		keys: newKeyQueries(d),
	}
	if d.SQLite() {
		q.beforeClaim, q.afterClaim = func(time.Duration) string { return c.settings(true) }, ""
	}
	table := "inbox"
	if c.Schema.Inbox == schema.ByDay {
		table = "inbox_default" // the partition of keys, and of ids without a time
		q.sweepRows = newSweepRows(d, ``, ``)
		q.days = newDayQueries(d)
	}
	const returning = `RETURNING {millis processed_at}`
	q.sweepInbox = newSweepRows(d, expiredKey, returning)(c.Schema.Table(table))
	q.sweepInboxFrom = newSweepRows(d, expiredKey+` AND processed_at >= {from_millis $5}`, returning)(c.Schema.Table(table))
	return q
}

// newSweepRows returns the statement that removes a batch of expired rows from a table or
// partition, except the ids of parked messages, which may be handled again. ORDER BY makes
// PostgreSQL use the index; otherwise a sweep that finds few rows could read the whole table.
func newSweepRows(d dialect.Dialect, condition, returning string) func(table string) string {
	query := d.SQL(`
			DELETE FROM %[1]s WHERE (message_id, consumer) IN (
				SELECT message_id, consumer FROM %[1]s AS i
				WHERE processed_at < {after $1} AND NOT EXISTS (
					SELECT 1 FROM {parked} AS p
					WHERE p.consumer = i.consumer AND p.message_id = i.message_id AND p.message_id <> ''
					  AND p.state NOT IN ` + parkedrows.Final + `) ` + condition + `
				ORDER BY processed_at LIMIT $2
				{skip_locked}) ` + returning)
	return func(table string) string { return fmt.Sprintf(query, table) }
}

// expiredKey is true for a row with a message id, and for one with a key that may be removed, see
// [Inbox.recordParkedKeys]. The key of a resolved message is kept while it has a row in {parked},
// because an edited copy may have the same key. For NOT EXISTS in place of the subquery with LIMIT,
// PostgreSQL may read all parked messages.
//
// While a consumer has parked messages with unknown keys, all of its keys are kept. The statement
// that deletes keys looks for them itself, because a process may be suspended after it has recorded
// keys, and a message edited or imported meanwhile.
var expiredKey = `
					AND (substr(i.message_id, 1, 4) <> '` + keyPrefix + `'
					     OR processed_at < {from_millis $3}
					        AND i.consumer NOT IN (` + otherUnknownKeys("consumer", "$4") + `)
					        AND (SELECT 1 FROM {parked} AS p WHERE p.consumer = i.consumer AND ` + oldEntry("$4") + ` LIMIT 1) IS NULL
					        AND (SELECT 1 FROM {parked} AS p
					             WHERE p.dedup_key = i.message_id AND p.consumer = i.consumer AND p.dedup_key <> ''
					             LIMIT 1) IS NULL)`

// sweepParked returns the statement that removes a batch of finished parked messages, except those
// of an unfinished replay, whose outcomes are counted by their rows. Without the array of ids,
// PostgreSQL may join them with the whole table.
func sweepParked(d dialect.Dialect, from string) string {
	return parkedrows.DeleteRows(d, `
				SELECT id FROM {parked} WHERE state IN `+parkedrows.Final+` AND finished_at < {after $1} `+from+`
				  AND (replay_id IS NULL OR replay_id NOT IN (SELECT id FROM {replays} WHERE state <> 'finished'))
				ORDER BY finished_at LIMIT $2`, `RETURNING {millis finished_at}`)
}

// setTimeouts has no parameters, so that it needs only one round trip.
func setTimeouts(lock, idle time.Duration) string {
	return setLockTimeout(lock) + fmt.Sprintf(`; SET LOCAL idle_in_transaction_session_timeout = %d`, idle.Milliseconds())
}

func setLockTimeout(d time.Duration) string {
	return fmt.Sprintf(`SET LOCAL lock_timeout = %d`, d.Milliseconds())
}

// NULL resets lock_timeout after a batch has inserted into the inbox.
const resetLockTimeout = `set_config('lock_timeout', NULL, true)`

// batchLockTimeout is how long a batch waits for duplicates in other transactions. Then its
// messages are handled one by one, so that only the duplicates wait longer.
const batchLockTimeout = time.Second

// claimParams is the number of parameters for each row of a batch. The consumer is one more.
const claimParams = 3

func newClaim(d dialect.Dialect) func(rows int) string {
	head := d.SQL(`INSERT INTO {inbox} (consumer, message_id, digest, tenant) VALUES `)
	tail := d.SQL(` ON CONFLICT (message_id, consumer) DO NOTHING RETURNING message_id`)
	one := d.SQL(` ON CONFLICT (message_id, consumer) DO NOTHING RETURNING left(` + resetLockTimeout + `, 0) || message_id`)
	mark := "$"
	if d.SQLite() {
		mark, one = "?", tail
	}
	return func(rows int) string {
		var b strings.Builder
		b.WriteString(head)
		for n := range rows {
			if n > 0 {
				b.WriteByte(',')
			}
			b.WriteString("(" + mark + "1")
			for column := range claimParams {
				b.WriteString("," + mark + strconv.Itoa(2+claimParams*n+column))
			}
			b.WriteByte(')')
		}
		if rows == 1 {
			b.WriteString(one)
		} else {
			b.WriteString(tail)
		}
		return b.String()
	}
}
