package dedup

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/dialect"
	"github.com/watermill-once/once/internal/parked"
	"github.com/watermill-once/once/schema"
)

type queries struct {
	begin  string // for a transaction without an insert into the inbox
	insert dialect.Statement
	same   dialect.Statement

	// check fails if the handler has ended the transaction, for example with a
	// COMMIT statement. Statements that ran after that would be committed without
	// a row in the inbox.
	check string

	// For batches: the same as insert and same, for several rows.
	beforeClaim func(lock time.Duration) string
	claim       func(rows int) string
	afterClaim  string // empty for SQLite
	digests     string

	sweepInbox      string
	sweepInboxFrom  string // continues at the time where the previous batch ended
	sweepParked     string
	sweepParkedFrom string

	keys keyQueries

	// For the layout schema.ByDay.
	sweepRows func(table string) string
	days      dayQueries
}

func newQueries(d dialect.Dialect, c Config) queries {
	idle := fmt.Sprintf(`SET LOCAL idle_in_transaction_session_timeout = %d`, c.IdleTimeout.Milliseconds())
	q := queries{
		begin: `SELECT ` + keepLockTimeout + `; ` + idle,

		// Every message needs this statement, so it sets the timeouts too and saves
		// a round trip. lock_timeout applies to this statement only: an expression in
		// VALUES sets it before the insert, and RETURNING restores it. Without an
		// inserted row RETURNING does not run, but then no handler runs either.
		insert: d.Statement(idle, `
			INSERT INTO {inbox} (message_id, consumer, digest, tenant)
			VALUES ($1, $2, $3, CASE
				WHEN set_config('lock_timeout', left(`+keepLockTimeout+`, 0) || '`+millis(c.LockTimeout)+`', true) <> '' THEN $4 END)
			ON CONFLICT (message_id, consumer) DO NOTHING
			RETURNING `+lockTimeoutBack),

		// The error names a setting that does not exist, so transactionGone
		// recognizes it.
		check: `SELECT current_setting('once.' || CASE WHEN current_setting('once.lock_timeout', true) <> '' ` +
			`THEN 'lock_timeout' ELSE '` + endedParameter + `' END)`,

		// Not combined with insert: the combined statement costs more than two.
		same: d.Statement("", `
			SELECT digest = $3 FROM {inbox} WHERE message_id = $1 AND consumer = $2`),

		beforeClaim: func(lock time.Duration) string {
			return `SELECT ` + keepLockTimeout + `; SET LOCAL lock_timeout = ` + millis(lock) + `; ` + idle
		},
		claim:      newClaim(d),
		afterClaim: `SELECT ` + lockTimeoutBack,

		digests: d.SQL(`
			SELECT message_id, digest FROM {inbox} WHERE consumer = $1 AND message_id IN {list $2 text}`),

		sweepParked:     sweepParked(d, ``),
		sweepParkedFrom: sweepParked(d, `AND finished_at >= {from_millis $3}`),

		keys: newKeyQueries(d),
	}
	if d.SQLite() {
		q.begin, q.check = `SAVEPOINT `+savepoint, `RELEASE `+savepoint
		q.insert = d.Statement("", `
			INSERT INTO {inbox} (message_id, consumer, digest, tenant) VALUES ($1, $2, $3, $4)
			ON CONFLICT (message_id, consumer) DO NOTHING`)
		q.beforeClaim, q.afterClaim = func(time.Duration) string { return q.begin }, ""
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

// newSweepRows returns the statement that removes a batch of expired rows from a
// table or partition. It keeps ids of parked messages, because they may run again.
// The ORDER BY makes PostgreSQL use the index; otherwise a sweep that finds few
// rows may read the whole table.
func newSweepRows(d dialect.Dialect, condition, returning string) func(table string) string {
	query := d.SQL(`
			DELETE FROM %[1]s WHERE (message_id, consumer) IN (
				SELECT message_id, consumer FROM %[1]s AS i
				WHERE processed_at < {after $1} AND NOT EXISTS (
					SELECT 1 FROM {parked} AS p
					WHERE p.consumer = i.consumer AND p.message_id = i.message_id AND p.message_id <> ''
					  AND p.state NOT IN ` + parked.Final + `) ` + condition + `
				ORDER BY processed_at LIMIT $2
				{skip_locked}) ` + returning)
	return func(table string) string { return fmt.Sprintf(query, table) }
}

// expiredKey is the condition under which a row that is a key may be removed, see
// [Inbox.recordParkedKeys]. A resolved message keeps its key while its row exists,
// because an edited copy of it may have the same key. A subquery with LIMIT
// replaces NOT EXISTS, for which PostgreSQL may read all parked messages.
const expiredKey = `
					AND (substr(i.message_id, 1, 4) <> '` + keyPrefix + `'
					     OR processed_at < {from_millis $3} AND i.consumer NOT IN {list $4 text}
					        AND (SELECT 1 FROM {parked} AS p
					             WHERE p.dedup_key = i.message_id AND p.consumer = i.consumer AND p.dedup_key <> ''
					             LIMIT 1) IS NULL)`

// sweepParked returns the statement that removes a batch of finished parked
// messages. It keeps the entries of a replay that has not finished, because the
// replay counts its outcomes in their rows. The ids are an array; otherwise
// PostgreSQL may join them with the whole table.
func sweepParked(d dialect.Dialect, from string) string {
	return parked.DeleteRows(d, `
				SELECT id FROM {parked} WHERE state IN `+parked.Final+` AND finished_at < {after $1} `+from+`
				  AND (replay_id IS NULL OR replay_id NOT IN (SELECT id FROM {replays} WHERE state <> 'finished'))
				ORDER BY finished_at LIMIT $2`, `RETURNING {millis finished_at}`)
}

// setTimeouts returns a statement that sets the timeouts of a transaction. It has
// no parameters, so that it is one round trip. It is empty for SQLite.
func setTimeouts(d dialect.Dialect, lock, idle time.Duration) string {
	if d.SQLite() {
		return ""
	}
	return fmt.Sprintf(`SET LOCAL lock_timeout = %d; SET LOCAL idle_in_transaction_session_timeout = %d`,
		lock.Milliseconds(), idle.Milliseconds())
}

// The handler's statements use the lock_timeout of the session. Its value is kept
// in a setting of the transaction while the inbox uses its own lock_timeout.
const (
	keepLockTimeout = `set_config('once.lock_timeout', current_setting('lock_timeout'), true)`
	lockTimeoutBack = `set_config('lock_timeout', current_setting('once.lock_timeout'), true)`
)

// The error of check contains one of these names: the setting (PostgreSQL) or the
// savepoint (SQLite) that does not exist.
const (
	endedParameter = `transaction_was_ended_by_the_handler`
	savepoint      = `once_message`
)

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// batchLockTimeout is how long a batch waits for duplicates that other
// transactions handle. Then its messages run alone, so that only the duplicates
// wait longer.
const batchLockTimeout = time.Second

// claimParams is the number of parameters of a row. The consumer is one more, the
// first of the statement, for all rows.
const claimParams = 3

func newClaim(d dialect.Dialect) func(rows int) string {
	head := d.SQL(`INSERT INTO {inbox} (consumer, message_id, digest, tenant) VALUES `)
	tail := d.SQL(` ON CONFLICT (message_id, consumer) DO NOTHING RETURNING message_id`)
	one := d.SQL(` ON CONFLICT (message_id, consumer) DO NOTHING RETURNING left(` + lockTimeoutBack + `, 0) || message_id`)
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
